// The random state of one device: which key the next random op gets. Keys come from the seed, the
// step and the number of random ops so far; elements are counted from the batch's global row. So
// masks are equal over ranks, micro-batches and recomputation, however the batch is cut.
//
// Note [streams]: where no step was ever begun, nobody has said which global rows a rank has, and
// all ranks would count from row 0 and drop the same elements. A wrapper that knows its rank
// therefore names a stream, which keeps the masks of ranks apart until somebody calls begin.

/** A snapshot of the random state, which a recomputation restores. */
export interface RandomState {
  readonly step: number;
  readonly rowOffset: number;
  readonly callCount: number;
  /** The stream, which is 0 where a step was begun. See Note [streams]. */
  readonly stream: number;
}

/** A 64-bit key for one random op. */
export interface RandomKey {
  readonly key0: number;
  readonly key1: number;
}

/** The random state of one device, which gives the keys of its random ops. */
export class Random {
  readonly seed: number;
  #step = 0;
  #rowOffset = 0;
  #callCount = 0;
  #stream = 0;
  #hasBegun = false;

  /** @param seed any safe integer, which must be equal on all ranks of a job */
  constructor(seed: number) {
    this.seed = seed;
  }

  /** Begins the forward pass of a (micro-)batch whose first row is row `rowOffset` of the batch. */
  begin(options: { step: number; rowOffset: number }): void {
    this.#step = options.step;
    this.#rowOffset = options.rowOffset;
    this.#callCount = 0;
    this.#stream = 0;
    this.#hasBegun = true;
  }

  /**
   * Keeps masks apart from those of other streams, as long as no step was ever begun. A wrapper
   * that knows its rank calls it before each forward pass. Stream 0 has the masks of a device
   * without one.
   * @param stream a whole number from 0 on: the rank among those that share a batch
   */
  separate(stream: number): void {
    if (!this.#hasBegun) {
      this.#stream = stream;
    }
  }

  /** Whether a step was ever begun, so that the steps decide which masks are drawn. */
  get hasBegun(): boolean {
    return this.#hasBegun;
  }

  get rowOffset(): number {
    return this.#rowOffset;
  }

  /** Returns the key of the next random op whose values all ranks share, such as parameters. */
  nextKey(): RandomKey {
    return this.#next(0);
  }

  /** Returns the key of the next mask, which differs between streams. */
  nextMaskKey(): RandomKey {
    return this.#next(this.#stream);
  }

  #next(stream: number): RandomKey {
    const call = this.#callCount++;
    const low = this.seed >>> 0;
    const high = Math.floor(this.seed / 2 ** 32) >>> 0;
    return {
      key0: mix(low ^ mix(this.#step >>> 0) ^ mix(stream)), // mix(0) is 0
      key1: mix(high ^ mix((call + 0x9e3779b9) >>> 0)),
    };
  }

  state(): RandomState {
    return {
      step: this.#step,
      rowOffset: this.#rowOffset,
      callCount: this.#callCount,
      stream: this.#stream,
    };
  }

  restore(state: RandomState): void {
    this.#step = state.step;
    this.#rowOffset = state.rowOffset;
    this.#callCount = state.callCount;
    this.#stream = state.stream;
  }
}

/** The 32-bit finaliser of MurmurHash3: a bijection that spreads neighboring inputs. */
function mix(value: number): number {
  let h = value >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b) >>> 0;
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35) >>> 0;
  return (h ^ (h >>> 16)) >>> 0;
}
