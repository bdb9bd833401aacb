// How much work a submit holds. Drivers and browsers end what runs for seconds, and the device with
// it, while short submits cost a fast GPU its time; so the operations of a submit follow the speed
// that was measured. They decide where commands are cut, and no bits of any result.
//
// Note [measured speed]: timestamps would slow every pass down, so the times are those at which the
// host submits, and at which it learns that a submit is complete. What was submitted after the last
// submit known complete cannot have begun before it was submitted, and ended before its completion
// was learned. So its operations over that time are a rate that the device reached at least,
// whatever else it did meanwhile. Late news, a host that was slow to submit and a shader that was
// compiled first make the rate too low, which costs submits and never a device. An estimate of
// operations that is too high would make it too high; the median of five rates leaves two out.

/**
 * The ms that a submit should take: a page waits for its turn as long, and Windows ends what takes
 * two seconds, by default.
 */
const AIM_MS = 75;
/** The first submits: 50 ms on an integrated GPU of 100 GFLOP/s, half a second on a tenth of it. */
const FIRST_FLOPS = 5e9;
/** The slowest GPU that is served does 13 GFLOP/s at this. */
const LEAST_FLOPS = 1e9;
/** By model an H100 takes 6 ms for this, and more would gain nothing. */
const MOST_FLOPS = 200e9;
/** The budget that a plan counts with: the measured one is known only to a device that ran. */
export const PLANNED_FLOPS = 50e9;
const NUM_RATES = 5;
/** The share of a full submit below which work is too short to tell a rate from a wait's delay. */
const TELLING_SHARE = 0.5;
/** The submits that are remembered while there is no news; further ones count as the last. */
const MOST_UNSEEN = 64;
/** The full submits behind the last news after which a page that reads nothing asks for some. */
const UNSEEN_SUBMITS = 4;

export interface SubmitBudgetOptions {
  /** The operations that every submit may hold, if they shall follow no clock. */
  readonly fixedFlops: number | undefined;
  /**
   * Calls back once all that is submitted is complete. It is undefined where a promise about the
   * queue keeps the event loop busy, as in Node; reads and syncs bring news there.
   */
  readonly whenDone: ((done: () => void) => void) | undefined;
  /** The clock in ms. The default is performance.now. */
  now?(): number;
}

interface Submit {
  readonly serial: number;
  readonly atMs: number;
  readonly flops: number;
}

export class SubmitBudget {
  readonly #isFixed: boolean;
  readonly #whenDone: SubmitBudgetOptions['whenDone'];
  readonly #now: () => number;
  #flops: number;
  /** The submits that are not known to be complete, in order. */
  #unseen: Submit[] = [];
  #rates: number[] = [];
  #isAsking = false;

  constructor({ fixedFlops, whenDone, now = () => performance.now() }: SubmitBudgetOptions) {
    this.#isFixed = fixedFlops !== undefined;
    this.#flops = fixedFlops ?? FIRST_FLOPS;
    this.#whenDone = whenDone;
    this.#now = now;
  }

  /** The most operations of a dispatch that can be cut, and of all dispatches of a submit. */
  get flops(): number {
    return this.#flops;
  }

  /** Takes note of a submit. Serials count up. */
  submitted(serial: number, flops: number): void {
    if (this.#isFixed) {
      return;
    }
    const last = this.#unseen.length < MOST_UNSEEN ? undefined : this.#unseen.pop();
    const atMs = last?.atMs ?? this.#now();
    this.#unseen.push({ serial, atMs, flops: flops + (last?.flops ?? 0) });
    if (!this.#isAsking && sum(this.#unseen) >= UNSEEN_SUBMITS * this.#flops) {
      this.#ask(serial);
    }
  }

  /** Learns that a submit and all before it are complete. */
  completed(serial: number): void {
    const done = this.#unseen.filter((submit) => submit.serial <= serial);
    this.#unseen = this.#unseen.slice(done.length);
    const flops = sum(done);
    const ms = done.length === 0 ? 0 : this.#now() - done[0]!.atMs;
    if (ms <= 0 || flops < TELLING_SHARE * this.#flops) {
      return;
    }
    this.#rates = [...this.#rates, flops / ms].slice(-NUM_RATES);
    const wanted = AIM_MS * lowerMedian(this.#rates);
    const step = within(wanted, this.#flops / 2, 2 * this.#flops);
    this.#flops = within(step, LEAST_FLOPS, MOST_FLOPS);
  }

  #ask(serial: number): void {
    if (this.#whenDone === undefined) {
      return;
    }
    this.#isAsking = true;
    this.#whenDone(() => {
      this.#isAsking = false;
      this.completed(serial);
    });
  }
}

function sum(submits: readonly Submit[]): number {
  return submits.reduce((total, { flops }) => total + flops, 0);
}

function lowerMedian(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.ceil(values.length / 2) - 1]!;
}

function within(value: number, least: number, most: number): number {
  return Math.min(Math.max(value, least), most);
}
