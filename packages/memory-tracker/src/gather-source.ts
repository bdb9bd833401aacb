// What the tracker needs of a process group, so that it depends on no package of groups. A
// ProcessGroup of @shardweave/collectives fits.

/** The fields of a finished call that the tracker reads. */
export interface GatherTrace {
  readonly name: string;
  /** The bytes of one rank's part. */
  readonly bytes: number;
  readonly failed: boolean;
}

/** Declared by way of a method, so that listeners that read more fields fit too. */
export type GatherListener = { call(trace: GatherTrace): void }['call'];

/** Calls `onTrace` when a collective has ended. An all-gather has the name 'allGather'. */
export interface GatherSource {
  readonly worldSize: number;
  onTrace: GatherListener | undefined;
}

/**
 * Adds up the bytes of all-gathers' outputs. A listener that was there before still hears all
 * calls.
 */
export class GatherCounter {
  readonly #removals: (() => void)[] = [];
  #totalBytes = 0;
  #isStopped = false;

  constructor(sources: readonly GatherSource[]) {
    for (const source of new Set(sources)) {
      this.#listen(source);
    }
  }

  /** The output bytes of all gathers so far. */
  get totalBytes(): number {
    return this.#totalBytes;
  }

  stop(): void {
    this.#isStopped = true;
    for (const remove of this.#removals.splice(0)) {
      remove();
    }
  }

  #listen(source: GatherSource): void {
    const before = source.onTrace;
    const listener: GatherListener = (trace) => {
      before?.(trace);
      if (this.#isStopped || trace.failed || trace.name !== 'allGather') {
        return;
      }
      this.#totalBytes += trace.bytes * source.worldSize;
    };
    source.onTrace = listener;
    this.#removals.push(() => {
      // A listener that came later hears the calls through this one. Then this one stays, and
      // counts nothing.
      if (source.onTrace === listener) {
        source.onTrace = before;
      }
    });
  }
}
