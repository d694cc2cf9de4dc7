// The emulation's run time: fibers, barriers, instructions of whole warps, device memory with guard pages. One system
// thread uses it at a time. Failures (a deadlock, memory that is not there) end the launch with a line of text.
#define EMULATE
#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

EmuPlace emu_at;

namespace {
const int kThreads = 1024, kStack = 256 << 10, kPage = 4096, kBarriers = 16, kSharedMost = 256 << 10;

struct Copy {
  u8* dst;
  const void* src;
  int bytes, width, group;
};
struct Fiber {
  void* sp;
  enum { ready, waiting, ended } state;
  const char* at; // what it waits for
  int barrier;
  Copy* copies;
  int ncopies, cap, group;
};
struct Barrier { int arrived, want; };
struct Warp {
  const char* op;
  int arrived, phase;
  EmuSlot slots[2][32]; // a lane may begin the next instruction while others still read from this one
};

Fiber fibers[kThreads];
Barrier barriers[kBarriers];
Warp warps[kThreads / 32];
u8 *stacks, *shared_end;
void* home; // the scheduler's stack pointer
jmp_buf escape;
pthread_t owner;
bool running;
const char* kernel;
char error[1 << 14];
void (*body)(const void*);
const void* args;

// Device memory: addresses come from one range of their own and are never used twice, so that a number in a kernel's
// arguments that lies in it is an address, and one that nobody has any more is known.
u8* const base = (u8*)0x3a7b00000000;
const size_t range = (size_t)1 << 40;
size_t used;

u8* map(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : (u8*)p;
}
} // namespace

#define CALLER __builtin_return_address(0)
#ifdef RACES
#include "races.h"
#define RACE(x) x
#else
#define RACE(x)
void emu_warp_order(EmuSlot*) {}
void emu_fence_async() {}
void emu_wgmma(bool) {}
void emu_wgmma_commit() {}
void emu_wgmma_wait(int) {}
void emu_pdl_launch() {}
void emu_pdl_wait() {}
#endif

// emu_switch saves the registers that calls preserve on the stack, keeps the stack pointer in *save and goes on at
// `to`.
extern "C" void emu_switch(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
  .text
  .hidden emu_switch
  .globl emu_switch
emu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .hidden emu_switch
  .globl emu_switch
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "the emulation switches stacks on amd64 and arm64 only"
#endif

void emu_fail(const char* format, ...) {
  int n = snprintf(error, sizeof error, "kernel %s, block %d,%d,%d, thread %d: ", kernel, emu_at.block[0],
      emu_at.block[1],
                   emu_at.block[2], emu_at.tid);
  va_list v;
  va_start(v, format);
  vsnprintf(error + n, sizeof error - n, format, v);
  va_end(v);
  _longjmp(escape, 1);
}

static void leave() { emu_switch(&fibers[emu_at.tid].sp, home); }

static void fiber_main() {
  body(args);
  fibers[emu_at.tid].state = Fiber::ended;
  leave();
  abort();
}

static void prepare(int i) {
  Fiber& f = fibers[i];
  u8* top = stacks + (size_t)(i + 1) * kStack;
  void** sp = (void**)top;
#if defined(__x86_64__)
  *--sp = nullptr; // where a caller's return address would be: keeps the stack aligned as after a call
  *--sp = (void*)fiber_main;
  for (int r = 0; r < 6; r++) *--sp = nullptr;
#else
  sp -= 20;
  memset(sp, 0, 160);
  sp[11] = (void*)fiber_main;
#endif
  f.sp = sp;
  f.state = Fiber::ready;
  f.at = "";
  f.barrier = -1;
  f.ncopies = f.group = 0;
}

static void wait_at(const char* what, int barrier) {
  Fiber& f = fibers[emu_at.tid];
  f.state = Fiber::waiting;
  f.at = what;
  f.barrier = barrier;
  leave();
}

void emu_barrier(int id, int n, bool wait) {
  if (id < 0 || id >= kBarriers || n % 32 || n <= 0) emu_fail("barrier %d of %d threads", id, n);
  Barrier& b = barriers[id];
  if (b.arrived && b.want != n) emu_fail("barrier %d of %d threads, others wait for %d", id, n, b.want);
  b.want = n;
  RACE(race_barrier_arrive(id));
  if (++b.arrived == n) {
    b.arrived = 0;
    for (int i = 0; i < emu_at.threads; i++)
      if (fibers[i].state == Fiber::waiting && fibers[i].barrier == id) {
        fibers[i].state = Fiber::ready;
        RACE(race_barrier_leave(id, i));
      }
    RACE(if (wait) race_barrier_leave(id, emu_at.tid));
    RACE(race_barrier_empty(id));
  } else if (wait)
    wait_at("a barrier", id);
}

EmuSlot* emu_meet(const char* op, const u32* in, int words, void (*done)(EmuSlot*)) {
  int lane = emu_at.tid & 31, first = emu_at.tid - lane;
  Warp& w = warps[emu_at.tid >> 5];
  if (w.arrived && strcmp(w.op, op)) emu_fail("%s, where other lanes of the warp are at %s", op, w.op);
  EmuSlot* s = w.slots[w.phase & 1];
  w.op = op;
  memcpy(s[lane].v, in, words * 4);
  if (++w.arrived < 32) {
    wait_at(op, -1);
    return s;
  }
  w.arrived = 0;
  w.phase++;
  for (int i = first; i < first + 32; i++)
    if (fibers[i].state == Fiber::waiting) fibers[i].state = Fiber::ready;
  if (done) done(s);
  return s;
}

void emu_copy(u32 dst, const void* src, int bytes, int width) {
  Fiber& f = fibers[emu_at.tid];
  if ((u64)src % width) emu_fail("asynchronous copy of %d bytes from the odd address %p", width, src);
  if (f.ncopies == f.cap) {
    f.cap = f.cap ? 2 * f.cap : 16;
    f.copies = (Copy*)realloc(f.copies, f.cap * sizeof(Copy));
  }
  f.copies[f.ncopies++] = {emu_shared(dst, width), src, bytes, width, f.group};
  RACE(race_copy(dst - EMU_SHARED_BASE, width, src, bytes, CALLER));
}
void emu_copy_commit() { fibers[emu_at.tid].group++; }
void emu_copy_wait(int left) {
  Fiber& f = fibers[emu_at.tid];
  int n = 0;
  for (int i = 0; i < f.ncopies; i++) {
    Copy& c = f.copies[i];
    if (c.group >= f.group - left) {
      f.copies[n++] = c;
      continue;
    }
    memset(c.dst, 0, c.width);
    memcpy(c.dst, c.src, c.bytes);
    RACE(race_copied((u32)(c.dst - emu_at.shared), c.width, emu_at.tid));
  }
  f.ncopies = n;
}

// Barriers in shared memory, and copies that complete on them: at once, or (in every other launch) not before somebody waits for the barrier.
// A barrier's phase ends when all arrivals and all bytes that were announced have come.
struct MemBar { int bytes; u16 pending, count_phase; };
struct Bulk { u8* dst; const void* src; u32 bytes, bar; };
static Bulk bulks[4096];
static int nbulks, spins;
static bool lazy, spun;

static MemBar* membar(u32 a) { return (MemBar*)emu_shared(a, 8); }
static void check_phase(u32 bar) {
  MemBar* b = membar(bar);
  if (b->pending || b->bytes) return;
  RACE(race_bar_phase(bar));
  b->count_phase ^= 1;
  b->pending = b->count_phase >> 1;
  spins = 0;
}
static void finish_bulk(const Bulk& c) {
  memcpy(c.dst, c.src, c.bytes);
  membar(c.bar)->bytes -= (int)c.bytes;
  check_phase(c.bar);
}
void emu_bar_init(u32 bar, u32 n) {
  RACE(race_bar_init(bar, CALLER));
  *membar(bar) = {0, (u16)n, (u16)(n << 1)};
}
void emu_bar_arrive(u32 bar, u32 bytes) {
  MemBar* b = membar(bar);
  RACE(race_bar_arrive(bar, CALLER));
  if (!b->pending) emu_fail("one more arrival at the barrier at %u than it was made for", bar);
  b->bytes += (int)bytes;
  b->pending--;
  check_phase(bar);
}
void emu_bar_wait(u32 bar, u32 parity) {
  for (;;) {
    int n = 0;
    for (int i = 0; i < nbulks; i++)
      if (bulks[i].bar == bar) finish_bulk(bulks[i]);
      else bulks[n++] = bulks[i];
    nbulks = n;
    if ((membar(bar)->count_phase & 1u) != parity) {
      RACE(race_bar_waited(bar, CALLER));
      return;
    }
    if (++spins > 1 << 22) emu_fail("nothing completes the barrier at %u", bar);
    spun = true;
    leave(); // and be called again, after others
  }
}
void emu_bulk(u32 dst, const void* src, u32 bytes, u32 bar) {
  if (dst % 16 || (u64)src % 16 || bytes % 16 || !bytes) emu_fail("bulk copy of %u bytes from %p to %u", bytes, src, dst);
  emu_shared(dst, 1);
  emu_shared(dst + bytes - 1, 1);
  Bulk c = {emu_shared(dst, 1), src, bytes, bar};
  RACE(race_bulk(dst - EMU_SHARED_BASE, src, bytes, bar, CALLER));
  if (!lazy) finish_bulk(c);
  else if (nbulks == 4096) emu_fail("more than 4096 bulk copies at a time");
  else bulks[nbulks++] = c;
}

// Adds to a number that other threads add to as well, with the order of an atomic for the whole device, or with none.
u32 emu_atomic(u32* p, u32 n, bool gpu) {
  RACE(race_atomic(p, gpu, CALLER));
  u32 v = *p;
  *p += n;
  return v;
}

// Whether all blocks of a cluster have called this, which follow each other.
bool emu_last(int blocks) {
  static u32 called;
  if (emu_atomic(&called, 1, true) + 1 < (u32)blocks) return false;
  called = 0;
  return true;
}

// Products of the tensor cores: lane 4g+t holds rows g and g+8 of A, column g of B and of the result's columns 2t, 2t+1.
template <float (*value)(u32)> static void mma(EmuSlot* s) {
  float a[16][16], b[8][16];
  double d[16][8];
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 2; i++)
      for (int k = 0; k < 2; k++) {
        int g = l >> 2, t = l & 3;
        for (int r = 0; r < 2; r++) a[g + 8 * i][2 * t + 8 * k + r] = value(s[l].v[i + 2 * k] >> (16 * r) & 0xffff);
        b[g][2 * t + 8 * k + i] = value(s[l].v[4 + k] >> (16 * i) & 0xffff);
      }
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 8; j++) {
      double x = 0;
      for (int k = 0; k < 16; k++) x += (double)(a[i][k]) * b[j][k];
      d[i][j] = x;
    }
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 4; i++) memcpy(&s[l].v[2 * i], &d[(l >> 2) + 8 * (i >> 1)][2 * (l & 3) + (i & 1)], 8);
}
static float half_value(u32 h) { return h2f(h); }
static float bfloat_value(u32 h) { return bits_f(h << 16); }
void emu_mma_f16(EmuSlot* s) { mma<half_value>(s); }
void emu_mma_bf16(EmuSlot* s) { mma<bfloat_value>(s); }
void emu_mma_s8(EmuSlot* s) {
  signed char a[16][32], b[8][32];
  for (int l = 0; l < 32; l++)
    for (int r = 0; r < 4; r++) {
      int g = l >> 2, t = l & 3;
      for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) a[g + 8 * i][4 * t + 16 * k + r] = (signed char)(s[l].v[i + 2 * k] >> (8 * r));
      for (int k = 0; k < 2; k++) b[g][4 * t + 16 * k + r] = (signed char)(s[l].v[4 + k] >> (8 * r));
    }
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 4; i++) {
      int x = 0;
      for (int k = 0; k < 32; k++) x += a[(l >> 2) + 8 * (i >> 1)][k] * b[2 * (l & 3) + (i & 1)][k];
      s[l].v[i] = (u32)x;
    }
}

// ---- launching

static struct sigaction before[2];

static void on_fault(int sig, siginfo_t* info, void* context) {
  if (running && pthread_equal(pthread_self(), owner))
    emu_fail("no memory at %p%s", info->si_addr, (u64)info->si_addr - (u64)shared_end < (u64)kPage
        ? " (behind shared memory)" : "");
  struct sigaction& a = before[sig == SIGBUS];
  if (a.sa_flags & SA_SIGINFO) a.sa_sigaction(sig, info, context);
}

static void catch_faults(bool on) {
  struct sigaction a = {};
  a.sa_sigaction = on_fault;
  a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  int sigs[2] = {SIGSEGV, SIGBUS};
  for (int i = 0; i < 2; i++)
    if (on) sigaction(sigs[i], &a, &before[i]);
    else sigaction(sigs[i], &before[i], nullptr);
}

// Names the threads that wait and those that will never come.
static void deadlock() {
  int n = snprintf(error, sizeof error, "kernel %s, block %d,%d,%d: deadlock:", kernel, emu_at.block[0],
      emu_at.block[1], emu_at.block[2]);
  for (int from = 0, to; from < emu_at.threads && n < (int)sizeof error; from = to) {
    Fiber& f = fibers[from];
    for (to = from; to < emu_at.threads && fibers[to].state == f.state && fibers[to].at == f.at &&
        fibers[to].barrier == f.barrier;) to++;
    const char* sep = from ? "," : "";
    if (f.state == Fiber::ended) n += snprintf(error + n, sizeof error - n, "%s threads %d to %d ended", sep, from,
        to - 1);
    else if (f.barrier >= 0)
      n += snprintf(error + n, sizeof error - n, "%s threads %d to %d wait at barrier %d for %d", sep, from, to - 1,
          f.barrier,
                    barriers[f.barrier].want);
    else n += snprintf(error + n, sizeof error - n, "%s threads %d to %d wait at %s", sep, from, to - 1, f.at);
  }
  _longjmp(escape, 1);
}

static void run_block(const EmuLaunch* l) {
  for (int i = 0; i < l->threads; i++) prepare(i);
  memset(barriers, 0, sizeof barriers);
  nbulks = spins = 0;
  lazy = !l->reverse;
  for (int i = 0; i < l->threads / 32; i++) warps[i].arrived = 0;
  memset(emu_at.shared, 0xff, l->shared);
  RACE(race_block());
  // A warp runs until all its lanes wait. So the one that comes last to a barrier runs ahead of all others to the next
  // one, which shows where a barrier is missing.
  for (int live = l->threads; live;) {
    bool moved = false;
    for (int w = 0; w < l->threads / 32; w++) {
      int first = 32 * (l->reverse ? l->threads / 32 - 1 - w : w);
      for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < 32; i++) {
          int t = first + (l->reverse ? 31 - i : i);
          if (fibers[t].state != Fiber::ready) continue;
          moved = true;
          spun = false;
          emu_at.tid = t;
          emu_switch(&home, fibers[t].sp);
          if (!spun) again = true;
          if (fibers[t].state == Fiber::ended) live--;
        }
      }
    }
    if (!moved) deadlock();
  }
  RACE(for (int i = 0; i < l->threads; i++)
         for (int k = 0; k < fibers[i].ncopies; k++)
           race_copied((u32)(fibers[i].copies[k].dst - emu_at.shared), fibers[i].copies[k].width, i));
  RACE(for (int i = 0; i < nbulks; i++) race_under_way(bulks[i].bar));
  RACE(race_ended());
}

int emu_launch(const char* name, void (*fn)(const void*), const void* a, const EmuLaunch* l, int most) {
  kernel = name;
  if (l->threads <= 0 || l->threads % 32 || l->threads > most || most > kThreads) {
    snprintf(error, sizeof error, "kernel %s: %d threads, want whole warps up to %d", name, l->threads, most);
    return 1;
  }
  if (l->grid[0] <= 0 || l->grid[1] <= 0 || l->grid[2] <= 0 || l->shared < 0 || l->shared > kSharedMost) {
    snprintf(error, sizeof error, "kernel %s: grid %d,%d,%d with %d bytes of shared memory", name, l->grid[0],
        l->grid[1], l->grid[2], l->shared);
    return 1;
  }
  if (!stacks) {
    stacks = map((size_t)kThreads * kStack, PROT_READ | PROT_WRITE);
    for (int i = 0; i < kThreads; i++) mprotect(stacks + (size_t)i * kStack, kPage, PROT_NONE);
    shared_end = map(kSharedMost + kPage, PROT_READ | PROT_WRITE) + kSharedMost;
    mprotect(shared_end, kPage, PROT_NONE);
  }
  emu_at.threads = l->threads;
  memcpy(emu_at.grid, l->grid, sizeof l->grid);
  emu_at.bytes = l->shared;
  emu_at.shared = shared_end - (l->shared + 127) / 128 * 128; // so that its end is the end of memory
  body = fn;
  args = a;
  owner = pthread_self();
  running = true;
  RACE(race_launch(l->early));
  catch_faults(true);
  int failed = _setjmp(escape);
  if (!failed) {
    int n = l->grid[0] * l->grid[1] * l->grid[2];
    for (int i = 0; i < n; i++) {
      int b = l->reverse ? n - 1 - i : i;
      emu_at.block[0] = b % l->grid[0];
      emu_at.block[1] = b / l->grid[0] % l->grid[1];
      emu_at.block[2] = b / l->grid[0] / l->grid[1];
      run_block(l);
    }
  }
  catch_faults(false);
  running = false;
  RACE(if (failed) race_forget());
  RACE(failed |= reports > 0);
  return failed;
}

EXPORT const char* emu_error() { return error; }

// ---- device memory

EXPORT void* emu_alloc(size_t bytes) {
  // the last page is a guard
  size_t whole = (bytes + 255) / 256 * 256, pages = (whole + kPage - 1) / kPage * kPage + kPage;
  void* p = MAP_FAILED;
  while (p == MAP_FAILED) { // another emulation in this process may be there already
    if (used + pages > range) return nullptr;
    p = mmap(base + used, pages, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED && errno != EEXIST) return nullptr;
    used += pages;
  }
  mprotect((u8*)p + pages - kPage, kPage, PROT_NONE);
  u8* start = (u8*)p + pages - kPage - whole;
  memset(start, 0xff, whole);
  return start;
}
EXPORT void emu_release(u8* p, size_t bytes) {
  size_t whole = (bytes + 255) / 256 * 256, pages = (whole + kPage - 1) / kPage * kPage;
  munmap(p + whole - pages, pages + kPage);
  RACE(race_release(p, whole));
}
EXPORT void emu_move(void* dst, const void* src, size_t bytes) {
  RACE(race_host(dst, src));
  memmove(dst, src, bytes);
}
EXPORT void emu_fill(void* dst, int value, size_t bytes) {
  RACE(race_host(dst, dst));
  memset(dst, value, bytes);
}
