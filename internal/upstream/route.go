package upstream

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Policy is how a replica is chosen.
type Policy int

const (
	// Sticky sends what begins alike to the same replica, as long as that one is not much busier than others.
	Sticky Policy = iota
	// LeastLoaded takes the replica with the fewest requests.
	LeastLoaded
	// RoundRobin takes one after the other. It is here to be compared with.
	RoundRobin
)

func (p Policy) String() string {
	return [...]string{"prefix-sticky", "least loaded", "round robin"}[p]
}

// Node is a replica as the choice sees it.
type Node struct {
	Name string // stays the same for as long as its cache does: an address
	Load int    // requests it works on
}

// slack is how much busier than the average a replica may get before requests that belong to it go elsewhere. A
// quarter keeps nearly all of them at home and the longest queue near the average (consistent hashing with bounded
// loads).
const slack = 1.25

// Order lists replicas by which should get a request, the best first. key stands for the request's beginning, 0 for
// none; turn counts requests.
func (p Policy) Order(nodes []Node, key, turn uint64) []int {
	order := make([]int, len(nodes))
	total := 1
	for i, n := range nodes {
		order[i] = i
		total += n.Load
	}
	if len(nodes) < 2 {
		return order
	}
	// Equals take turns.
	start := int(turn % uint64(len(nodes)))
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Compare((a-start+len(nodes))%len(nodes), (b-start+len(nodes))%len(nodes))
	})
	switch {
	case p == RoundRobin:
	case p == LeastLoaded || key == 0:
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(nodes[a].Load, nodes[b].Load) })
	default:
		most := int(slack*float64(total)/float64(len(nodes)) + 0.999)
		rank := make([]uint64, len(nodes))
		for i, n := range nodes {
			rank[i] = affinity(n.Name, key)
		}
		full := func(i int) int {
			if nodes[i].Load+1 > most {
				return 1
			}
			return 0
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Or(cmp.Compare(full(a), full(b)), cmp.Compare(rank[b], rank[a]))
		})
	}
	return order
}

// affinity is how much a key belongs to a node (rendezvous hashing): each key has an order of nodes of its own, and a
// node that comes or goes moves its own keys only. Every server in front of the same nodes finds the same order.
func affinity(name string, key uint64) uint64 {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte(name), key))
	return binary.LittleEndian.Uint64(sum[:])
}
