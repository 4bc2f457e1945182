"""The ground of the tests of several folders; pytest finds it by `pythonpath`, and so do processes that tests start."""
