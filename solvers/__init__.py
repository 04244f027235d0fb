"""Block eigensolvers on blockvec's block vectors."""
