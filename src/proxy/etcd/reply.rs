//! What a client gets back: etcd's response, or a refusal as gRPC tells it.

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Response, StatusCode};

use super::body::ToClient;
use super::frames::frame;
use super::upstream::Unary;
use crate::protocol::Refusal;
use crate::protocol::refusal::RefusalReply;
use crate::proxy::fence::status;

/// A refusal: a response that is trailers alone (gRPC over HTTP2, "Responses").
pub fn refusal(refusal: &Refusal) -> Response<ToClient> {
    told(&status::of(refusal))
}

/// A refusal that ends a stream which has begun.
pub fn trailers(refusal: &Refusal) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    put(&status::of(refusal), &mut trailers);
    trailers
}

/// A compressed message where it must be read: the client is told what it may send (gRPC,
/// "Compression").
pub fn no_compression() -> Response<ToClient> {
    let status = tonic::Status::unimplemented("this proxy reads messages: send them uncompressed");
    let mut response = told(&status);
    let identity = HeaderValue::from_static("identity");
    response
        .headers_mut()
        .insert("grpc-accept-encoding", identity);
    response
}

fn told(status: &tonic::Status) -> Response<ToClient> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    put(status, &mut headers);
    let mut response = Response::new(ToClient::Empty);
    *response.headers_mut() = headers;
    response
}

fn put(status: &tonic::Status, headers: &mut HeaderMap) {
    // The details are ours and short; were they not a header, the code alone still tells.
    if status.add_header(headers).is_err() {
        headers.insert("grpc-status", HeaderValue::from(status.code() as i32));
    }
}

/// A refusal to what is no gRPC.
pub fn plain(reply: RefusalReply) -> Response<ToClient> {
    let body = ToClient::Message(Some(reply.body.into()), None);
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::FORBIDDEN);
    let media_type = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

/// etcd's response as it comes. `body`: what is made of its body.
pub fn stream(
    response: Response<Incoming>,
    body: impl FnOnce(Incoming) -> ToClient,
) -> Response<ToClient> {
    let (head, incoming) = response.into_parts();
    // A response that is trailers alone must stay one.
    let body = match incoming.is_end_stream() {
        true => ToClient::Empty,
        false => body(incoming),
    };
    Response::from_parts(head, body)
}

/// A call's response with another message.
pub fn unary(head: Parts, message: &[u8], trailers: Option<HeaderMap>) -> Response<ToClient> {
    let mut head = head;
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, ToClient::Message(Some(frame(message)), trailers))
}

/// A call's response as it is: a failure.
pub fn failed(unary: Unary) -> Response<ToClient> {
    let body = match (&unary.message, &unary.trailers) {
        (None, None) => ToClient::Empty,
        _ => ToClient::Message(unary.message.as_deref().map(frame), unary.trailers),
    };
    Response::from_parts(unary.head, body)
}
