// This measures how late the machine is. Limits on time are the product's, and a busy machine makes
// each of several processes as late as it makes this one's timers.

const TICK_MS = 20;

/** Up to three processes, one after another, may each be as late as this one. */
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

  /**
   * Returns the time to allow beyond a limit: three times the sum by which all timers since
   * `startMs` were late.
   */
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
