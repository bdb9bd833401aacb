// The groups that a wrapper sends over, and its turn on them beside the other wrappers of its
// group. Buckets take the lanes in turn, so that their sums run beside one another; all else goes
// over the first.

import { exchangeWords, type ProcessGroup } from '@shardweave/collectives';
import { exchangeCall } from './agreement.js';
import type { ResolvedDdpOptions } from './options.js';
import { serial, tellOthers } from './tell-others.js';

export class WrapperLanes {
  readonly group: ProcessGroup;
  readonly #options: Pick<ResolvedDdpOptions, 'numStreams' | 'communicators'>;
  #lanes: readonly ProcessGroup[] = [];
  #wrapper = 0;

  constructor(
    group: ProcessGroup,
    options: Pick<ResolvedDdpOptions, 'numStreams' | 'communicators'>,
  ) {
    this.group = group;
    this.#options = options;
  }

  /** Empty on one rank, and before `open`. */
  get all(): readonly ProcessGroup[] {
    return this.#lanes;
  }

  /** False on one rank: nobody is there to agree with. */
  get areOpen(): boolean {
    return this.#lanes.length > 0;
  }

  /** The wrapper's number among those of the group, for what ranks compare. */
  get wrapper(): number {
    return this.#wrapper;
  }

  /**
   * Has all ranks wait their turn on the group, where other wrappers use it, too: `body` runs
   * beside no other collective of this package. On one rank it runs at once.
   */
  async inOpening(body: () => Promise<void>): Promise<void> {
    if (this.group.worldSize === 1) {
      return body();
    }
    const { starts } = this.group;
    await starts.enqueue(
      Promise.resolve(),
      () => {
        this.#wrapper = starts.nextUser();
        return body();
      },
      serial(this.group, 'ddp initialize'),
    );
  }

  /** Opens the lanes, once; collective where groups are split off, one for each stream. */
  async open(): Promise<void> {
    const { numStreams, communicators } = this.#options;
    if (this.group.worldSize === 1) {
      return;
    }
    if (numStreams === 1) {
      this.#lanes = [this.group];
      return;
    }
    const lanes = [...(communicators ?? [])];
    while (lanes.length < numStreams) {
      lanes.push(await this.group.split(0));
    }
    this.#lanes = lanes;
  }

  /** The least that any rank has; collective. */
  async leastOf(own: number): Promise<number> {
    if (this.group.worldSize === 1) {
      return own;
    }
    const word = Uint32Array.of(Math.min(own, 2 ** 32 - 1));
    const words = await exchangeWords(this.group, word, exchangeCall('largest bucket'));
    return words.reduce((a, b) => Math.min(a, b));
  }

  /** Runs a collective of the wrapper in its turn on the group. */
  inTurn<T>(body: (group: ProcessGroup) => Promise<T>): Promise<T> {
    const { group } = this;
    return group.starts.enqueue(Promise.resolve(), () => body(group), serial(group, 'ddp'));
  }

  /**
   * This rank has failed, and the others wait for it on whichever group: it tells them on all,
   * behind what it has started on each. Returns when they have failed alike, or the job has ended.
   */
  async tellOthers(operation: string, error: unknown): Promise<void> {
    const groups = new Set([this.group, ...this.#lanes]);
    const told = [...groups].map((group) =>
      group.starts.enqueue(Promise.resolve(), () => tellOthers(group, operation, error), {
        isSerial: true,
      }),
    );
    await Promise.all(told);
  }
}
