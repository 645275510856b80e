//! Real servers for tests: on free ports, with their own data folders, ended when dropped.

pub mod etcd;
