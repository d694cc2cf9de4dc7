package main

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Tiles (AMX) multiply 16 columns by 16 rows and 32 values at once. Every sub-block needs its own sums, because scales
// are applied in float32 as everywhere else: a tile starts at the magic number, is computed, stored, and read by the
// vector units. Tiles exist for sub-blocks of 32: with 16, storing costs what multiplying saves.
//
// Neither avo nor the Go assembler knows tiles, so their instructions are written as bytes, each under a comment with
// its mnemonic. avo has to know which general registers they read; of tiles it need not know.

// tmm is a tile register.
type tmm byte

// raw emits bytes as data. in are the registers that they read.
func raw(text string, enc []byte, in ...Op) {
	Comment(text)
	for len(enc) > 0 {
		i := &ir.Instruction{Inputs: in}
		switch {
		case len(enc) >= 4:
			i.Opcode, i.Operands, enc = "LONG", []Op{U32(binary.LittleEndian.Uint32(enc))}, enc[4:]
		case len(enc) >= 2:
			i.Opcode, i.Operands, enc = "WORD", []Op{U16(binary.LittleEndian.Uint16(enc))}, enc[2:]
		default:
			i.Opcode, i.Operands, enc = "BYTE", []Op{U8(enc[0])}, enc[1:]
		}
		Instruction(i)
	}
}

// gp is the AT&T name of a register, gpIndex its number.
func gp(r GPPhysical) string {
	names := []string{"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"}
	if i := gpIndex(r); i < 8 {
		return "%" + names[i]
	}
	return fmt.Sprintf("%%r%d", gpIndex(r))
}

func gpIndex(r GPPhysical) byte { return byte(r.PhysicalIndex()) }

// Prefixes of VEX.
const (
	prefixF3 = 2
	prefixF2 = 3
)

// tileMem emits a load or store of rows at base+disp, step bytes apart. base is neither RBP nor R13, which cannot do
// without a displacement.
func tileMem(name string, prefix byte, t tmm, base GPPhysical, disp int, step GPPhysical) {
	b, x := gpIndex(base), gpIndex(step)
	enc := []byte{0xc4, 0xe2 ^ x>>3<<6 ^ b>>3<<5, 0x78 | prefix, 0x4b, 0x04 | byte(t)<<3, x&7<<3 | b&7}
	switch {
	case disp >= 128:
		enc[4] |= 0x80
		enc = binary.LittleEndian.AppendUint32(enc, uint32(disp))
	case disp > 0:
		enc[4] |= 0x40
		enc = append(enc, byte(disp))
	}
	place := fmt.Sprintf("%d(%s,%s)", disp, gp(base), gp(step))
	text := fmt.Sprintf("%s %s, %%tmm%d", name, place, t)
	if name == "tilestored" {
		text = fmt.Sprintf("%s %%tmm%d, %s", name, t, place)
	}
	raw(text, enc, base, step)
}

func tileLoad(t tmm, base GPPhysical, disp int, step GPPhysical) {
	tileMem("tileloadd", prefixF2, t, base, disp, step)
}

func tileStore(t tmm, base GPPhysical, disp int, step GPPhysical) {
	tileMem("tilestored", prefixF3, t, base, disp, step)
}

// tileDot adds the products of the signed bytes of a by the bytes of b, signed or not, to c.
func tileDot(c, a, b tmm, signed bool) {
	name, prefix := "tdpbsud", byte(prefixF3)
	if signed {
		name, prefix = "tdpbssd", prefixF2
	}
	raw(fmt.Sprintf("%s %%tmm%d, %%tmm%d, %%tmm%d", name, b, a, c),
		[]byte{0xc4, 0xe2, ^byte(b)&15<<3 | prefix, 0x5e, 0xc0 | byte(c)<<3 | byte(a)})
}

func tileConfig(base GPPhysical) {
	b := gpIndex(base)
	raw(fmt.Sprintf("ldtilecfg (%s)", gp(base)), []byte{0xc4, 0xe2 ^ b>>3<<5, 0x78, 0x49, b & 7}, base)
}

func tileRelease() { raw("tilerelease", []byte{0xc4, 0xe2, 0x78, 0x49, 0xc0}) }

// Layout of the job, see amxJob in amx_amd64.go of the package. Eight bytes each.
const (
	jobW        = 8 * iota // rows, at the block
	jobStride              // from row to row
	jobStep                // from block to block
	jobPair                // from panel to panel
	jobBlocks              // that are left
	jobX                   // activations of the column tile
	jobSkip                // from the last column tile of a block to the first of the next
	jobN                   // columns
	jobTile                // columns of a tile
	jobQuarter             // a quarter of them, rounded up
	jobAcc                 // sums: [tile] of 4096 bytes with [column][32]float32
	jobBuf                 // working memory
	jobPF                  // next address to prefetch
	jobPFDecode            // distances of addresses to prefetch
	jobPFTile

	// What follows is the kernel's own.
	jobLeft    // columns that are left in this block, or panels to decode
	jobAccAt   // sums of the column tile
	jobPanelW  // rows of the panel that is decoded
	jobPanelPS // its scales
	jobPanelQ  // its codes
	jobPS      // scales of the block, one of two places
	jobCur     // the column tile that is multiplied: activations, scales, sums, columns
	_
	_
	_
	jobPrev // the one that the float part is at
	_
	_
	_
	jobSize
)

// Layout of the working memory. Stored tiles lie in the upper halves of pages, and so do the scales of activations
// below: loads then do not wait for stores that have the same low address bits.
const (
	bufMagic = 64 // after the configuration
	bufRing  = 4096
	bufQ     = bufRing + 4*4096 // codes of two panels
	bufPS    = bufQ + 2*4096    // [2][panel] scales and minima
	panelPS  = panelSize - panelScale
	bufSize  = bufPS + 4*panelPS
)

// Layout of 256 values of a tile of up to 16 columns.
const (
	actQ    = 0    // [sub-block][column][32]int8
	actXS   = 6144 // [sub-block][16]float32
	actMS   = 6656 // [sub-block][16]float32
	actSize = 8192
)

func load(off int, r GPPhysical)  { MOVQ(mem(amxJob, off), r) }
func store(off int, r GPPhysical) { MOVQ(r, mem(amxJob, off)) }

// amxJob is the register with the job.
var amxJob = R15

// amxSteps is the number of steps of a block. Each has two sub-blocks of two panels: four tiles.
const amxSteps = 4

// amx emits the kernel for two panels and any number of columns. While the float part of one step runs, the tiles of
// the next but one are computed and those in between are stored, so that nothing waits for a product or a store.
func amx(f *format) {
	name := "amx" + f.name
	TEXT(name, NOSPLIT, "func(j *byte)")
	Doc(name+" multiplies 32 rows by the columns of the job. It configures the tiles and releases them: between two "+
		"calls a goroutine may", "move to another thread. Needs AVX-512 F and BW, and AMX-INT8.", refMul)
	Pragma("noescape")
	Load(Param("j"), amxJob)
	a := &amxKernel{name: name, min: f.kind.min, mg: bcast(magic)}
	load(jobBuf, RAX)
	tileConfig(RAX)
	ADDQ(I32(bufPS), RAX)
	store(jobPS, RAX)
	store(jobPrev+8, RAX)
	XORL(EAX, EAX)
	store(jobPrev+24, RAX) // the float part of the first two steps has no columns

	Label(name + "_block")
	a.decode(f)
	load(jobN, RAX)
	store(jobLeft, RAX)
	load(jobAcc, RAX)
	store(jobAccAt, RAX)
	Label(name + "_tile")
	load(jobX, RAX)
	store(jobCur, RAX)
	load(jobPS, RAX)
	store(jobCur+8, RAX)
	load(jobAccAt, RAX)
	store(jobCur+16, RAX)
	load(jobTile, RAX)
	load(jobLeft, RCX)
	CMPQ(RAX, RCX)
	CMOVQGT(RCX, RAX)
	store(jobCur+24, RAX)
	for s := range amxSteps {
		if s == 2 {
			for o := 0; o < 32; o += 8 {
				load(jobCur+o, RAX)
				store(jobPrev+o, RAX)
			}
		}
		a.step(fmt.Sprintf("%s_f%d", name, s), s, (s+amxSteps-2)%amxSteps, s%2)
	}
	ADDQ(I32(actSize), mem(amxJob, jobX))
	ADDQ(I32(4096), mem(amxJob, jobAccAt))
	load(jobPrev+24, RAX) // columns
	SUBQ(RAX, mem(amxJob, jobLeft))
	JNE(LabelRef(name + "_tile"))
	load(jobSkip, RAX)
	ADDQ(RAX, mem(amxJob, jobX))
	load(jobBuf, RAX) // the other place for scales
	LEAQ(mem(RAX, 2*bufPS+2*panelPS), RCX)
	ADDQ(RAX, RCX)
	SUBQ(mem(amxJob, jobPS), RCX)
	store(jobPS, RCX)
	DECQ(mem(amxJob, jobBlocks))
	JNE(LabelRef(name + "_block"))
	// The last step is multiplied and stored, the last two are added.
	load(jobBuf, RBX)
	MOVQ(U32(64), R9)
	a.dot(3)
	for t := range 4 {
		a.store(t, 1)
	}
	a.step(name+"_e0", -1, amxSteps-2, 0)
	a.step(name+"_e1", -1, amxSteps-1, 1)
	tileRelease()
	VZEROUPPER()
	RET()
}

type amxKernel struct {
	name string
	min  bool
	mg   VecVirtual
}

// decode unpacks a block of two panels, one after the other. Codes with an offset become signed ones.
func (a *amxKernel) decode(f *format) {
	load(jobW, RAX)
	store(jobPanelW, RAX)
	load(jobPS, RAX)
	store(jobPanelPS, RAX)
	load(jobBuf, RAX)
	ADDQ(I32(bufQ), RAX)
	store(jobPanelQ, RAX)
	MOVQ(U32(2), RAX)
	store(jobLeft, RAX)
	Label(a.name + "_panel")
	w, stride := GP64(), GP64()
	MOVQ(mem(amxJob, jobPanelW), w)
	MOVQ(mem(amxJob, jobStride), stride)
	e := newEnv(f, w, stride)
	e.pf, e.pfStep = GP64(), GP64()
	MOVQ(mem(amxJob, jobPF), e.pf.(GPVirtual))
	MOVQ(mem(amxJob, jobPFDecode), e.pfStep.(GPVirtual))
	blocks := 256 / f.chunk
	e.slots = max(1, 64/(blocks*f.ticks))
	ps, p, pq := GP64(), GP64(), GP64()
	MOVQ(mem(amxJob, jobPanelPS), ps)
	LEAQ(mem(ps, -panelScale), p)
	e.p = p
	MOVQ(mem(amxJob, jobPanelQ), pq)
	s := &panelSink{k: f.kind, pq: pq, ps: ps}
	if !a.min {
		s.off = bcast(m80)
	}
	e.sink = s
	if f.header != nil {
		f.header(e)
	}
	cnt := GP64()
	MOVQ(I32(int32(blocks)), cnt)
	Label(a.name + "_chunk")
	f.emit(e, 0)
	e.advance(f.step)
	ADDQ(I32(int32(f.chunk*16)), pq)
	ADDQ(I32(int32(64*f.chunk/f.kind.sub)), ps)
	DECQ(cnt)
	JNZ(LabelRef(a.name + "_chunk"))
	MOVQ(e.pf.(GPVirtual), mem(amxJob, jobPF))
	load(jobPair, RAX)
	ADDQ(RAX, mem(amxJob, jobPanelW))
	ADDQ(I32(panelPS), mem(amxJob, jobPanelPS))
	ADDQ(I32(4096), mem(amxJob, jobPanelQ))
	DECQ(mem(amxJob, jobLeft))
	JNE(LabelRef(a.name + "_panel"))
	load(jobStep, RAX)
	ADDQ(RAX, mem(amxJob, jobW))
}

// Tiles 0 to 3 are sums of [sub-block][panel], 4 and 5 activations of the sub-blocks, 6 and 7 codes of the panels.

// store stores a tile of the step before.
func (a *amxKernel) store(t, slot int) {
	tileStore(tmm(t), RBX, bufRing+2048+8192*slot+4096*(t/2)+1024*(t%2), R9)
}

// tile stores tile t of the step before and loads the operands for step s. The product of the tile before it, whose
// operands have arrived meanwhile, is started first.
func (a *amxKernel) tile(t, s, parity int) {
	i, p := t/2, t%2
	a.dot((t + 3) % 4)
	a.store(t, 1-parity)
	tileLoad(tmm(t), RBX, bufMagic, R10)
	if p == 0 {
		tileLoad(tmm(4+i), RSI, actQ+512*(2*s+i), R8)
	}
	tileLoad(tmm(6+p), RBX, bufQ+4096*p+512*(2*s+i), R9)
}

// dot computes tile t, whose operands were loaded a while ago.
func (a *amxKernel) dot(t int) { tileDot(tmm(t), tmm(4+t/2), tmm(6+t%2), !a.min) }

// step computes the tiles of step s, if there is one, and adds those of step f to the sums.
func (a *amxKernel) step(label string, s, f, slot int) {
	load(jobPrev+24, RCX)
	load(jobPrev, R11)
	load(jobPrev+8, R12)
	load(jobPrev+16, R13)
	load(jobBuf, R14)
	ADDQ(I32(int32(bufRing+2048+8192*slot)), R14)
	load(jobPF, RAX)
	load(jobPFTile, RDX)
	if s >= 0 {
		load(jobBuf, RBX)
		load(jobCur, RSI)
		MOVQ(U32(64), R9)
		MOVQ(U32(32), R8)
		XORL(R10L, R10L) // every row of the magic number is the same
	}
	var c amxColumn
	for i := range 2 {
		for p := range 2 {
			c.ws[i][p], c.mw[i][p] = ZMM(), ZMM()
			VMOVUPS(mem(R12, p*panelPS+64*(2*f+i)), c.ws[i][p])
			VMULPS(a.mg, c.ws[i][p], c.mw[i][p])
			if a.min {
				c.mv[i][p] = ZMM()
				VMOVUPS(mem(R12, p*panelPS+panelMin-panelScale+64*(2*f+i)), c.mv[i][p])
			}
		}
	}
	for t := range 4 {
		if s >= 0 {
			a.tile(t, s, slot)
		}
		// A quarter of the columns.
		l := fmt.Sprintf("%s_%d", label, t)
		if t < 3 {
			load(jobQuarter, RDI)
			CMPQ(RCX, RDI)
			CMOVQLT(RCX, RDI)
			SUBQ(RDI, RCX)
		} else {
			MOVQ(RCX, RDI)
		}
		TESTQ(RDI, RDI)
		JZ(LabelRef(l + "_end"))
		Label(l)
		a.column(f, &c)
		DECQ(RDI)
		JNE(LabelRef(l))
		Label(l + "_end")
	}
	store(jobPF, RAX)
}

// amxColumn is what all columns share in a step: scales, scales times the magic number, and minima, by sub-block and
// panel.
type amxColumn struct{ ws, mw, mv [2][2]VecVirtual }

// column adds the stored tiles of step s to the sums of a column.
func (a *amxKernel) column(s int, c *amxColumn) {
	y := zs(2)
	VMOVUPS(mem(R13, 0), y[0])
	VMOVUPS(mem(R13, 64), y[1])
	PREFETCHT1(mem(RAX, 0))
	ADDQ(RDX, RAX)
	for i := range 2 {
		t, xs := zs(2), ZMM()
		VBROADCASTSS(mem(R11, actXS+64*(2*s+i)), xs)
		for p := range 2 {
			VMOVUPS(mem(R14, 4096*i+1024*p), t[p])
			VFMSUB213PS(c.mw[i][p], c.ws[i][p], t[p])
			VFMADD231PS(xs, t[p], y[p])
		}
		if a.min {
			ms := ZMM()
			VBROADCASTSS(mem(R11, actMS+64*(2*s+i)), ms)
			for p := range 2 {
				VFMADD231PS(ms, c.mv[i][p], y[p])
			}
		}
	}
	VMOVUPS(y[0], mem(R13, 0))
	VMOVUPS(y[1], mem(R13, 64))
	ADDQ(I8(4), R11)
	ADDQ(I32(128), R13)
	ADDQ(I32(64), R14)
}
