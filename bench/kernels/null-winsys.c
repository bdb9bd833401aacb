// Lets Dawn open Mesa's RADV without a GPU. The driver's null window system leaves a function pointer
// empty that Dawn's queue calls. With this, a call of address 0 returns 0; other faults are unchanged.
#define _GNU_SOURCE
#include <signal.h>
#include <ucontext.h>

static void on_fault(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  (void)info;
  if (registers[REG_RIP] != 0) {
    signal(number, SIG_DFL);
    return;
  }
  registers[REG_RIP] = *(greg_t *)registers[REG_RSP];
  registers[REG_RSP] += sizeof(greg_t);
  registers[REG_RAX] = 0;
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action = {0};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, 0);
}
