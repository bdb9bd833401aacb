// Gradients of trained parameters that every rank has whole (shardTrained: false) are added up over
// ranks as ddp does, by all-reduces. With gradientGroups a rank runs groups that follow one another
// and adds up their gradients on its host; the ranks' sums meet in the last call of a step. See
// nn's Note [groups].

import { type ProcessGroup, tellFailure } from '@shardweave/collectives';
import { type GroupCall, GroupSums } from '@shardweave/nn/flat';
import type { DType } from '@shardweave/tensor-core';
import { FsdpStateError } from '../errors.js';
import type { UnitLinks } from './unit-links.js';

/** What is reduced together in each call of a step. */
interface Key {
  readonly names: string;
  /** The calls of the present step that have brought a gradient. */
  numCalls: number;
}

/** What is to be added up over ranks. */
export interface WholeReduction {
  /** The buffer that begins with the gradients, once they are read. */
  readonly ready: Promise<Uint8Array>;
  readonly byteLength: number;
  readonly links: UnitLinks;
  readonly options: {
    readonly dtype: DType;
    readonly op: 'sum';
    readonly tag: string;
    readonly identity: string;
  };
}

/** Adds up gradients in the buffer that they are in. */
export function reduceWhole({ ready, byteLength, links, options }: WholeReduction) {
  const { reduceGroup, reductions } = links;
  return reductions.enqueue(
    ready,
    async (bytes) => {
      const part = bytes.subarray(0, byteLength);
      await reduceGroup.allReduce(part, part, options);
      return bytes;
    },
    { failed: (error) => tellFailure(reduceGroup, 'a reduction', error) },
  );
}

/** The calls of a step in groups, where each rank adds up the whole gradients of its own. */
export class WholeRounds {
  readonly sums: GroupSums<Key>;
  readonly #group: ProcessGroup;
  readonly #keys = new Map<string, Key>();
  /** The call that keys were last asked for. */
  #call: GroupCall | undefined;

  constructor(
    groups: number,
    group: ProcessGroup,
    options: { readonly isDry?: boolean | undefined },
  ) {
    this.sums = GroupSums.dealt(groups, group, { isDry: options.isDry });
    this.#group = group;
  }

  /**
   * Adds what the present call brings to what is held.
   * @returns after the last call the sum of all groups; undefined before
   */
  reduce({ ready, byteLength, links, options }: WholeReduction): Promise<Uint8Array | undefined> {
    const { reduceGroup, reductions, hostBuffers } = links;
    const { sums } = this;
    const call = sums.present;
    const key = this.#keyOf(options.tag);
    const held = ready.then(async (bytes) => {
      await sums.push(key, call, { byteLength, parts: [bytes.subarray(0, byteLength)] });
      hostBuffers.give(bytes);
    });
    if (!call.isLast) {
      return held.then(() => undefined);
    }
    const { tree } = sums;
    return reductions.enqueue(
      held,
      async () => {
        this.#requireAll(key);
        const { sums: own, place } = sums.heldOf(key)!; // there is none after a failure
        await reduceGroup.allReduce(own, place, { ...options, tree });
        return place;
      },
      { failed: (error) => tellFailure(reduceGroup, 'a reduction', error) },
    );
  }

  /**
   * Ends the present call.
   * @throws {FsdpStateError} where a step ends of which some calls brought no gradient of a unit
   */
  end(): void {
    const { sums } = this;
    for (const key of sums.present.isLast ? this.#keys.values() : []) {
      this.#requireAll(key);
    }
    sums.endCall();
  }

  #keyOf(names: string): Key {
    const { present } = this.sums;
    if (present !== this.#call && present.index === 0) {
      this.#keys.clear(); // another step, or this one begins anew
    }
    this.#call = present;
    const key = this.#keys.get(names) ?? { names, numCalls: 0 };
    key.numCalls += 1;
    this.#keys.set(names, key);
    return key;
  }

  #requireAll({ names, numCalls }: Key): void {
    const { groups, present } = this.sums;
    if (numCalls === present.index + 1) {
      return;
    }
    const { rank, worldSize } = this.#group;
    throw new FsdpStateError(
      `rank ${rank}/${worldSize} backward: expected a gradient of '${names}' in all ${groups} groups of a step, got one in some of them. Let each call use the same parameters.`,
    );
  }
}
