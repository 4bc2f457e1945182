"""The studies' models, a module each, named as its study is; who asks calls `plesio_planning.studies`."""
