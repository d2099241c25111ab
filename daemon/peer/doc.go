// Package peer lets the daemons of nodes that share a store speak to each other: a node that wants a workload which another one has claimed
// gets its newest snapshot from there, while it is still on its way to the store, and then the claim.
//
// Vocabulary:
//
//   - contact: a daemon's address and the fingerprint of its public key (durable.Contact). It stands in the node's object in the store, made with the
//     store's key. So who may speak is exactly who has that key.
//   - ask: names a workload, the node that asks, and the claim that is meant: the head's owner as the asking node has read it.
//   - offer: a snapshot that the workload sleeps with, all of it. Whoever has received it may not run it.
//   - yield: the claim's owner says that the workload sleeps with just that snapshot, and that it won't run it again before it has changed the
//     head. So whoever changes the head first has the workload, and an answer that is lost or late does no harm (docs/decisions/0009).
//
// Errors are of three kinds, and the caller decides by them: ErrUnavailable, after which the store is the way as ever; ErrRuns, which is worth another
// try; and *IdentityError, which stops: somebody isn't who he should be.
//
// The protocol, version 1, is HTTP/1.1 over TLS 1.3. Both have a certificate that nobody has signed; what counts is the key, by its fingerprint: SHA-256 of
// the SubjectPublicKeyInfo, in hex. The client knows the server's by the store, and the server the client's by the store and the node's name in the
// ask. Requests are POSTs with a JSON body, below /1/:
//
//	fetch    an Ask; waits up to Ask.Wait until the workload sleeps. 200: 8 bytes, the length of manifest.json, big-endian; manifest.json; the files, in the
//	         manifest's order. Content-Length is of all.
//	yield    an Ask with the sequence that was fetched. 204.
//	taken    an Ask: the head is changed. 204.
//	reserve  an Ask with what a workload needs: may it be moved there? 204.
//	pull     an Ask: take it, as a shim there would have it taken, and wake the container that waits for it. 200, and a Pulled.
//
// Another status than those is a Refusal in JSON. Each answer names the node's incarnation in the header Hibernate-Incarnation.
package peer
