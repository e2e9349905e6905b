//! The conformance suite: one library function over a pair of providers.
