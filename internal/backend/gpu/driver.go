// Package gpu runs models on a GPU: it compiles the operations of a step to a list of kernel launches, which is
// recorded once and replayed. It knows no driver: backend/cuda and backend/vulkan implement Driver. A Backend belongs
// to one goroutine.
//
// Read the compiler in this order: step.go collects operations and finds the recorded step that does the same, lower.go
// walks through a new list, trace.go finds the values that operations share, fuse.go has the patterns that become one
// kernel (one file each, fuse_*.go), schedule.go launches the other operations, kernels.go is the catalogue of kernels,
// and emit.go makes launches with argument bytes.
//
// The other files choose kernels and their grids: product.go, moe.go and float.go for products, attention.go, sparse.go
// and weigh.go for attention, delta.go for recurrent layers, small.go, pack.go and post.go for rows of activations;
// notensorcores.go has the choices of devices without tensor cores. weights.go and repack.go bring weights into tiles.
// pages.go, states.go and scratch.go are memory; plan.go, seen.go and deltatables.go write what changes from pass to
// pass. pieces.go follows results that lie in pieces: parts of sums, which the next kernel adds when it reads them.
package gpu

import "time"

// Addr is an address in device memory.
type Addr uint64

// Props is what the layer above needs to know of a device.
type Props struct {
	Name        string
	Major       int // compute capability
	Minor       int
	Units       int // multiprocessors
	Memory      int // bytes in all
	SharedBlock int // bytes of shared memory a block may ask for
	Threads     int // of a block at most; 0: at least 1024
	// NoTensorCores: it has the kernels of notensorcores.go, and, with Matrices, products by cooperative matrices.
	NoTensorCores, Matrices bool
}

// Handle is a kernel as its driver knows it.
type Handle interface{}

// Launch is one kernel of a step as drivers see it; emit makes it from a Call. Every kernel has exactly one parameter:
// a structure, whose bytes Args holds in the device's layout.
type Launch struct {
	Kernel Handle
	Name   string
	Args   []byte
	Config
}

// Config is how a kernel runs.
type Config struct {
	Grid    [3]int
	Threads int  // of a block
	Shared  int  // bytes of dynamic shared memory
	Early   bool // may start before the launch before it has ended; the kernel waits by itself (dependent launch)
	Beside  bool // needs nothing of the launch before it, nor does that need anything it writes
	Cluster int  // blocks that run side by side and read each other's shared memory; 0: they do not
	Alone   bool // takes long: a driver whose device is given up on after a while sends it by itself
}

// Preparer is a driver that compiles kernels, which it can do for all of a list at once.
type Preparer interface{ Prepare(ls []Launch) error }

// Recording is a list of launches that can be replayed at once.
type Recording interface{ Close() }

// Driver is a device: memory, kernels and one queue on which everything happens in order. It is used by one goroutine
// at a time. Failures of asynchronous work are reported by Wait.
type Driver interface {
	Props() Props
	Free() (free, total int) // bytes of device memory
	Alloc(bytes int) (Addr, error)
	Release(a Addr)
	Upload(dst Addr, src []byte)         // ordered with launches; src may be changed when it returns
	Download(dst []byte, src Addr) error // waits
	Copy(dst, src Addr, bytes int)
	Fill(dst Addr, value byte, bytes int)
	Kernel(k Kernel) (Handle, error)
	Compiling() time.Duration // how long kernels were compiled so far
	Launch(l *Launch)
	Record(ls []Launch) (Recording, error) // nil without an error: there is no memory for one
	Replay(r Recording)
	Wait() error
	Close() error
}
