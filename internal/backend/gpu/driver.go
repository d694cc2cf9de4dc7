// Package gpu runs models on a GPU: it compiles the operations of a step to a list of kernel launches, which is
// recorded once and replayed. Read it in this order: step.go collects operations, trace.go finds the values they share,
// fuse.go has the patterns that become one kernel, schedule.go chooses kernels for the rest, kernels.go is the
// catalogue of kernels, and emit.go makes launches. It knows no driver: backend/cuda and backend/vulkan implement
// Driver.
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
