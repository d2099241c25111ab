// Package s3store keeps objects in an S3 bucket, through minio-go.
//
// What it does otherwise than that library by itself:
//
//   - An object is one PUT, never a multipart upload, which leaves parts behind after a crash, and on which the
//     library drops the conditions. The payload's SHA-256 is in the signature.
//   - Each request is sent once. Who may repeat it decides (store.Retried); only the rest of a body that stalled or broke off is
//     asked for again, and only of the very same object.
//   - Absent is what the server calls NoSuchKey in so many words. A HEAD can't say that, so there is none, and an answer 404 of
//     something else is an error: wrong credentials can look like that.
//   - A request that nothing happens on ends, whatever its context: see Timeouts. HTTP/1.1 only.
//   - Without credentials nothing is sent, instead of a request that isn't signed.
package s3store
