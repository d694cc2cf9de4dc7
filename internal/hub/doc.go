// Package hub fetches model files from a Hugging Face hub into the cache that
// the hub's Python tools use, so a file either of them has is not fetched again.
//
// A [Client] resolves a reference such as "owner/repo:Q4_K_M" to the files that
// belong together ([Client.Resolve]) and makes them local ([Client.Pull]).
// Downloads continue where they were cut off and are checked against the hub's
// hash before they appear under their name. The server is not trusted: names
// that would leave the cache are refused.
//
// The cache below its folder:
//
//	models--OWNER--REPO/blobs/HASH                   content
//	models--OWNER--REPO/blobs/HASH.incomplete        a download to continue
//	models--OWNER--REPO/snapshots/COMMIT/FILE        link into blobs
//	models--OWNER--REPO/refs/REVISION                the commit it stood for
//
// A Client has no state of its own and is safe for concurrent use, also from
// several processes.
package hub
