"""What the tests of several folders build on; pytest finds it by `pythonpath`, and so do processes that tests start."""
