package gpu

import (
	"fmt"
	"reflect"
	"unsafe"
)

// Call is a launch as the passes of this package see it, which may still change it: a kernel of the catalogue and the
// structure that it takes, by its fields.
type Call struct {
	Kernel Kernel
	Args   any // a pointer to what Kernel.Args says
	Config
}

// Emit makes launches of calls. Nothing else turns kernels into names and arguments into bytes.
func Emit(d Driver, calls []Call) ([]Launch, error) { return emit(d, map[Kernel]Handle{}, calls) }

// emit is Emit with the kernels that the driver has found before.
func emit(d Driver, handles map[Kernel]Handle, calls []Call) ([]Launch, error) {
	launches := make([]Launch, len(calls))
	for i, c := range calls {
		args := reflect.ValueOf(c.Args)
		if want := reflect.PointerTo(reflect.TypeOf(c.Kernel.Args())); args.Type() != want {
			return nil, fmt.Errorf("kernel %s has arguments of type %s, it takes %s", c.Kernel.Name(), args.Type(), want)
		}
		handle, ok := handles[c.Kernel]
		if !ok {
			var err error
			if handle, err = d.Kernel(c.Kernel); err != nil {
				return nil, err
			}
			handles[c.Kernel] = handle
		}
		bytes := unsafe.Slice((*byte)(args.UnsafePointer()), args.Type().Elem().Size())
		launches[i] = Launch{Kernel: handle, Name: c.Kernel.Name(), Args: bytes, Config: c.Config}
	}
	return launches, nil
}

// launchNow launches calls outside of steps, of kernels that every device has.
func launchNow(d Driver, calls ...Call) {
	ls, err := Emit(d, calls)
	if err != nil {
		panic("gpu: " + err.Error())
	}
	for i := range ls {
		d.Launch(&ls[i])
	}
}
