// References of pairs beside their tokens, in the cache: a run that goes on, or another one beside
// the same base, finds them there. A file of them is there whole, and goes with its tokens.

import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ProcessGroup } from '@shardweave/collectives';
import type { Examples } from '../data/example-data.js';
import { writePieces } from '../files/write-file.js';
import { baseModelOf } from '../model/base-model.js';
import type { PreparedRun } from '../run-config.js';
import type { Resuming } from './open-rank.js';
import { sumOverRanks } from './strategies/sum-over-ranks.js';

/** Counts up with every change of what is found, or of how it is written. */
const FORMAT = 1;
/** A pair's number (u32), and the logarithms of both probabilities (f32). */
const ENTRY_BYTES = 12;
const TAG = 'references';

export interface KeptOptions {
  readonly config: PreparedRun;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
  readonly resuming: Pick<Resuming, 'base' | 'tiles'>;
  readonly numericClass: string;
}

/** The references of one base, as one kind of device finds them. */
export class KeptReferences {
  readonly #group: ProcessGroup;
  /** Undefined on all ranks but the first. */
  readonly #name: string | undefined;

  private constructor(group: ProcessGroup, name: string | undefined) {
    this.#group = group;
    this.#name = name;
  }

  /** Undefined where ranks round differently, so that what each finds is its own. Collective. */
  static async open(options: KeptOptions): Promise<KeptReferences | undefined> {
    const { config, group, resuming, numericClass } = options;
    const own = createHash('sha256').update(numericClass).digest();
    const first = await firstRanks(Uint8Array.from(own), group);
    const isOther = !own.equals(first);
    if ((await sumOverRanks(Number(isOther), group, TAG)) > 0) {
      return undefined;
    }
    if (group.rank > 0) {
      return new KeptReferences(group, undefined);
    }
    const { sha256 } = resuming.base ?? (await baseModelOf(config));
    const { modelConfig, lora, precision, seq } = config;
    const how = [FORMAT, sha256, modelConfig, lora?.baseType, precision, seq, numericClass];
    const key = createHash('sha256').update(JSON.stringify([...how, resuming.tiles]));
    return new KeptReferences(group, `${TAG}-${key.digest('hex').slice(0, 32)}`);
  }

  /** Puts the references of a token directory into the data, on all ranks. Collective. */
  async load(data: Pick<Examples, 'references'>, directory: string): Promise<void> {
    const read = async () =>
      this.#name === undefined
        ? new Uint8Array(0)
        : Uint8Array.from(await readFile(join(directory, this.#name)).catch(() => []));
    const bytes = await firstRanks(await read(), this.#group);
    const view = new DataView(bytes.buffer);
    for (let at = 0; at + ENTRY_BYTES <= bytes.length; at += ENTRY_BYTES) {
      const pair = [view.getFloat32(at + 4, true), view.getFloat32(at + 8, true)];
      data.references.set(view.getUint32(at, true), pair);
    }
  }

  /** Writes all references of a token directory, where this is the first rank. */
  async store(references: Examples['references'], directory: string): Promise<void> {
    if (this.#name === undefined) {
      return;
    }
    const bytes = new Uint8Array(ENTRY_BYTES * references.size);
    const view = new DataView(bytes.buffer);
    for (const [i, [number, [chosen, rejected]]] of [...references].entries()) {
      view.setUint32(ENTRY_BYTES * i, number, true);
      view.setFloat32(ENTRY_BYTES * i + 4, chosen!, true);
      view.setFloat32(ENTRY_BYTES * i + 8, rejected!, true);
    }
    await writePieces(join(directory, this.#name), [bytes]);
  }
}

/** The first rank's bytes. Collective. */
async function firstRanks(
  bytes: Uint8Array<ArrayBuffer>,
  group: ProcessGroup,
): Promise<Uint8Array<ArrayBuffer>> {
  const { rank, worldSize } = group;
  if (worldSize === 1) {
    return bytes;
  }
  const length = Uint32Array.of(bytes.length);
  await group.broadcast(new Uint8Array(length.buffer), { root: 0, tag: TAG });
  const all = rank === 0 ? bytes : new Uint8Array(length[0]!);
  if (all.length > 0) {
    await group.broadcast(all, { root: 0, tag: TAG });
  }
  return all;
}
