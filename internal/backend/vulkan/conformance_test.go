//go:build !nogpu

package vulkan_test

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/backendtest"
	"strobe/internal/backend/gpu"
	"strobe/internal/backend/vulkan"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/testkit/modeltest"
)

// openDriver opens the device that tests run on: the first one, or the one whose number is in $STROBE_VULKAN. Its
// calls are checked by the validation layer if $STROBE_VULKAN_VALIDATE is set. Without a driver tests are skipped,
// unless $STROBE_REQUIRE_VULKAN is set. They are long: Mesa's driver compiles every kernel for the processor.
func openDriver(t testing.TB) gpu.Driver {
	t.Helper()
	testkit.Long(t)
	d, err := vulkan.Open(index(), vulkan.Options{Validate: os.Getenv("STROBE_VULKAN_VALIDATE") != "",
		Shared: os.Getenv("STROBE_VULKAN_SHARED") != ""})
	if err != nil {
		if os.Getenv("STROBE_REQUIRE_VULKAN") == "" && (errors.Is(err, vulkan.ErrNoDriver) || noDevice()) {
			t.Skipf("needs a Vulkan driver, such as mesa-vulkan-drivers: %v", err)
		}
		t.Fatal(err)
	}
	said := len(messages(d))
	t.Cleanup(func() {
		for _, m := range messages(d)[said:] {
			t.Errorf("the validation layer says: %s", m)
		}
	})
	return d
}

func messages(d gpu.Driver) []string { return d.(interface{ Messages() []string }).Messages() }

func index() int {
	n, _ := strconv.Atoi(os.Getenv("STROBE_VULKAN"))
	return n
}

// software reports whether tests run on the processor, where everything takes long.
func software() bool {
	ds, err := vulkan.Devices()
	return err == nil && index() < len(ds) && ds[index()].Software
}

// beside has a test run at the same time as others, each with a device of its own, where devices are software:
// compiling kernels, which takes most of the time, uses one core.
func beside(t *testing.T) {
	t.Helper()
	testkit.Long(t)
	if software() {
		t.Parallel()
	}
}

func noDevice() bool {
	ds, err := vulkan.Devices()
	return err == nil && len(ds) == 0
}

func open(t testing.TB) backend.Backend {
	t.Helper()
	b, err := gpu.New(openDriver(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lasting is a device that stays open for a whole test: kernels are compiled once.
type lasting struct{ *gpu.Backend }

func (lasting) Close() error { return nil }

func openLasting(t testing.TB) backend.Backend {
	b := open(t)
	t.Cleanup(func() { b.Close() })
	return lasting{b.(*gpu.Backend)}
}

// bound: activations are rounded to bytes for products with quantised weights.
func bound(typ quant.Type, cols int) float64 {
	if typ.Quantized() && cols >= 512 {
		return 5e-2
	}
	return backendtest.ExactProduct(typ, cols)
}

// TestConformance runs the suite that every device passes.
func TestConformance(t *testing.T) {
	beside(t)
	b := openLasting(t)
	o := backendtest.Options{Copies: true, Product: bound,
		Stored: func(typ quant.Type) float64 {
			if typ.GridPoints() != nil {
				return 0x1p-11 // halves, or with scales that are
			}
			return 0
		}}
	if software() {
		// Every kernel is compiled for the processor, which takes longer than running it. More rows are in TestSubgroups.
		o.Rows = []int{1, 3}
		o.BigRow = 20_000
	}
	backendtest.Run(t, func(testing.TB) backend.Backend { return b }, o)
}

// TestReadSpeed: the measure of memory's speed runs and is a number.
func TestReadSpeed(t *testing.T) {
	b := open(t).(*gpu.Backend)
	defer b.Close()
	if v, err := b.ReadSpeed(1<<20, 2); err != nil || !(v > 0) {
		t.Errorf("%v bytes a second, %v", v, err)
	}
}

// TestSubgroups is a little of everything, for subgroups of other sizes (LP_NATIVE_VECTOR_WIDTH) and without shuffles.
func TestSubgroups(t *testing.T) {
	beside(t)
	o := backendtest.Options{Rows: []int{1, 16}, Weights: []quant.Type{quant.F32, quant.Q4_K, quant.Q6_K},
		KV: []quant.Type{quant.F16}, Heads: []int{64}, BigRow: 9000, Product: bound,
		Delta: []backend.DeltaDims{{KHeads: 2, VHeads: 4, KDim: 32, VDim: 48, Kernel: 4, Eps: 1e-6}}}
	b := openLasting(t)
	backendtest.Run(t, func(testing.TB) backend.Backend { return b }, o)
	modeltest.Suite{Backend: b, Few: 6}.Identity(t, "qwen35")
}
