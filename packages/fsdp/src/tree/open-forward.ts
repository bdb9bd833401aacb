// A forward of an instance that is under way: the tree that it runs in, and what it has of that.

import type { UseKind } from '@shardweave/nn/flat';
import { CallQueue } from '../ranks/call-queue.js';
import { castBuffers } from './cast-inputs.js';
import { callQueuesOf } from './collective-call.js';
import type { Instance, Tree } from './instance.js';
import { occupyUnits } from './stored-instance.js';

export class OpenForward {
  readonly tree: Tree;
  /** Whether it is inside no other forward and no backward. */
  readonly isOutermost: boolean;
  readonly #instance: Instance;
  readonly #phase: 'forward' | 'backward';
  readonly #leave: () => void;

  private constructor(
    instance: Instance,
    tree: Tree,
    { phase, leave }: { readonly phase: 'forward' | 'backward'; leave(): void },
  ) {
    this.#instance = instance;
    this.tree = tree;
    this.#phase = phase;
    this.#leave = leave;
    this.isOutermost = phase === 'forward' && tree.outermost === undefined;
  }

  /** Opens the tree; a forward inside no other waits for other calls, and keeps them away. */
  static async open(instance: Instance, phase: 'forward' | 'backward'): Promise<OpenForward> {
    const isInside = phase === 'backward' || instance.tree?.outermost !== undefined;
    let leave = () => {};
    if (!isInside) {
      const queues = callQueuesOf(instance.instances());
      if ([...queues].some(({ isIdle }) => !isIdle)) {
        await CallQueue.ended(queues); // their calls may have what rests in stores for themselves
      }
      leave = occupyUnits(instance.instances(), 'forward');
    }
    try {
      const tree = (isInside ? instance.tree : undefined) ?? (await instance.initialize());
      return new OpenForward(instance, tree, { phase, leave });
    } catch (error) {
      leave();
      throw error;
    }
  }

  /** Begins the tree's forward, where this is the outermost one. */
  begin(): void {
    const { tree } = this;
    const instance = this.#instance;
    if (!this.isOutermost) {
      return;
    }
    if (instance.isRoot) {
      for (const { module, options } of tree.instances) {
        castBuffers(module, options.bufferDType);
      }
    }
    tree.beginForward(instance);
    instance.wrapper.device.random.separate(tree.root.options.groups.batchRank);
  }

  /** Makes present what its forward or backward reads: its own parameters, and shared ones. */
  async unshard(): Promise<void> {
    const { tree } = this;
    const instance = this.#instance;
    if (instance.units.length > 0) {
      await tree.scheduler.enter(instance, this.#phase);
    }
    await instance.shared.enter(tree, this.#phase);
  }

  /** Tells the scheduler how it has used what it had gathered, for the backward to come. */
  noteUse(kind: UseKind): void {
    const { units, shared } = this.#instance;
    if (this.#phase === 'backward') {
      return;
    }
    const own = units.length > 0 ? [this.#instance] : [];
    for (const used of [...own, ...shared.owners]) {
      this.tree.scheduler.leave(used, kind);
    }
  }

  end(): void {
    this.#leave();
    if (this.isOutermost) {
      this.tree.outermost = undefined;
    }
  }
}
