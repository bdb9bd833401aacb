// What the tracker needs of a process group, so that it depends on none: a ProcessGroup of
// @shardweave/collectives is one.

/** The fields of a finished call that the tracker reads. */
export interface GatherTrace {
  readonly name: string;
  /** Bytes of one rank's part. */
  readonly bytes: number;
  readonly failed: boolean;
}

interface Listener {
  call(trace: GatherTrace): void;
}

/** As a method's type, so that listeners that read more fields fit, too. */
export type GatherListener = Listener['call'];

/** Calls `onTrace` when a collective has ended. All-gathers are those named 'allGather'. */
export interface GatherSource {
  readonly worldSize: number;
  onTrace: GatherListener | undefined;
}

/** Adds up the bytes that all-gathers put out; whoever listened before goes on hearing all. */
export class GatherCounter {
  readonly #removals: (() => void)[] = [];
  #totalBytes = 0;
  #isStopped = false;

  constructor(sources: readonly GatherSource[]) {
    for (const source of new Set(sources)) {
      this.#listen(source);
    }
  }

  /** Output bytes of all gathers so far. */
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
      // Somebody who came later hears through it: then it stays, counting nothing.
      if (source.onTrace === listener) {
        source.onTrace = before;
      }
    });
  }
}
