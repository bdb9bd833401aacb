// The groups that a wrapper sends over (its lanes), and its turn on them among the other wrappers
// of its group. Buckets take the lanes in turn, so that their sums run at the same time; everything
// else goes over the first lane.

import { exchangeWords, type ProcessGroup } from '@shardweave/collectives';
import type { ResolvedDdpOptions } from '../options.js';
import { exchangeCall } from './agreement.js';
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

  /** The lanes; empty on a single rank, and before `open`. */
  get all(): readonly ProcessGroup[] {
    return this.#lanes;
  }

  /** Whether the lanes are open; always false on a single rank, which has nobody to agree with. */
  get areOpen(): boolean {
    return this.#lanes.length > 0;
  }

  /** The wrapper's number among those of the group, which ranks compare. */
  get wrapper(): number {
    return this.#wrapper;
  }

  /**
   * Runs `body` when all ranks have their turn on the group, so that no other collective of this
   * package runs at the same time, even where several wrappers use the group. On a single rank it
   * runs at once.
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

  /** Opens the lanes, once. Collective where groups are split off, one for each stream. */
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

  /** The smallest `own` of all ranks. Collective. */
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
   * Tells the other ranks that this one has failed, on every group where they may wait for it,
   * after whatever this rank has started there. Resolves when they have failed alike, or the job
   * has ended.
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
