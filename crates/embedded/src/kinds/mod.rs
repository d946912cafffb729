//! Which kinds the API serves: the built-in table and those that CustomResourceDefinitions add.
