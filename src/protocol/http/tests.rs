//! Each rule of classification: one case that passes, one that is refused.
