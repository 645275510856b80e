//! Generated inputs.
