//! What the tests of every crate share: a real Kubernetes API to compare with, real servers of S3, of Azure and of PostgreSQL, tables as DynamoDB has them, a real registry of images, a real mail server, faults between a client and a service, objects
//! in few words, and children that never outlive a test. Nothing here is part of the product.

pub mod azure;
pub mod callers;
pub mod canary;
pub mod cluster;
pub mod deliveries;
pub mod dynamodb;
pub mod faults;
pub mod forge;
pub mod fuzz;
pub mod google;
pub mod mail;
pub mod needs;
pub mod objects;
pub mod postgres;
pub mod process;
pub mod receiver;
pub mod registry;
pub mod release;
pub mod s3;
mod tls;
pub mod tools;
