// How late this machine is: limits on time are the product's, and a machine that runs other things
// makes each of several processes late by what it makes this one's timers late.

const TICK_MS = 20;

/** Several processes, one after another, may each be as late as this one. */
const LATE_PROCESSES = 3;

export class Lateness implements Disposable {
  readonly #ticks: { readonly atMs: number; readonly lateMs: number }[] = [];
  readonly #timer: ReturnType<typeof setInterval>;

  constructor() {
    let lastMs = Date.now();
    this.#timer = setInterval(() => {
      const atMs = Date.now();
      this.#ticks.push({ atMs, lateMs: atMs - lastMs - TICK_MS });
      lastMs = atMs;
    }, TICK_MS);
  }

  /** What to allow beyond a limit: three times what all timers since then were late together. */
  sinceMs(startMs: number): number {
    return (
      LATE_PROCESSES *
      this.#ticks
        .filter(({ atMs }) => atMs >= startMs)
        .reduce((sum, { lateMs }) => sum + Math.max(0, lateMs), 0)
    );
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }
}
