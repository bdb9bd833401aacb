// What a process saves of a module and its optimizer, and what it loads into them. Wrappers that know of
// ranks or of stores put their agreements around these; a plain module needs none.

import type {
  HeldPiece,
  Save,
  SavedOptimizer,
  TensorSpec,
  WantedPiece,
} from '@shardweave/checkpoint';
import { fromF32Array, isFloat, toF32Array } from '@shardweave/dtypes';
import { byteSize, type Tensor } from '@shardweave/tensor-core';
import { NnConfigError, StateDictError } from '../errors.js';
import { nameOf } from '../optim/flat-plan.js';
import { FlatTarget } from './flat-target.js';
import {
  type AnyOptimizer,
  type FlatProgress,
  parameterPieces,
  progressOf,
  type SavedNames,
  sharesByFlat,
  statePieces,
} from './held-flats.js';

export interface HeldModuleOptions {
  readonly parameters: SavedNames;
  /** By name; only where this process writes or loads them. */
  readonly buffers: readonly (readonly [string, Tensor])[];
  readonly optimizer?: AnyOptimizer | undefined;
  /** Passes over frozen parameters. Default false. */
  readonly onlyTrained?: boolean | undefined;
}

export interface PiecesOptions {
  /** Agrees with others on what is kept of a flat's parameters. Default: what is kept here. */
  agree?(flat: Tensor, own: FlatProgress): Promise<FlatProgress>;
  /** Whether this process writes a flat. Default: all. */
  isWriting?(flat: Tensor): boolean;
}

/** What a process held of a module at one moment, on the host: whoever has it may write it at any time. */
export interface CapturedModule {
  readonly pieces: readonly HeldPiece[];
  /** Steps of parameters that have elements here, and the options of groups. */
  readonly optimizer: SavedOptimizer | undefined;
}

/** A device stages what it reads: so much of a piece is copied at a time. */
const COPY_ELEMENTS = 2 ** 22;

export interface LoadOptions {
  /** Refuse missing and unexpected names. Default true. */
  readonly strict?: boolean | undefined;
  /** Saved parameters and buffers that are somebody else's. Default: none. */
  isForeign?(name: string): boolean;
}

export class HeldModule {
  readonly #options: HeldModuleOptions;
  /** The state tensors that the optimizer keeps of each parameter that it steps. */
  readonly #stepped: ReadonlyMap<Tensor, readonly string[]>;
  /** Steps of each parameter whose state `pieces` has given. */
  readonly steps: Record<string, number> = {};

  /** @throws {NnConfigError} where the optimizer steps what has no name here */
  constructor(options: HeldModuleOptions) {
    const { optimizer, onlyTrained = false } = options;
    const held = [...options.parameters].filter(([param]) => !onlyTrained || param.requiresGrad);
    this.#options = { ...options, parameters: new Map(held) };
    this.#stepped = new Map(
      (optimizer?.groups ?? []).flatMap((group) => {
        const names = optimizer!.stateNamesOf(group);
        return group.params.map((param) => [param, names] as const);
      }),
    );
    const foreign = [...this.#stepped.keys()].find((param) => !options.parameters.has(param));
    if (foreign !== undefined) {
      throw new NnConfigError(
        `checkpoint: expected an optimizer of the module's parameters, got ${nameOf(foreign)}. Pass the module around all that it steps.`,
      );
    }
  }

  /** All pieces to write, flat by flat, and then the buffers. */
  async *pieces(options: PiecesOptions = {}): AsyncGenerator<HeldPiece> {
    const { agree = async (_, own) => own, isWriting = () => true } = options;
    const { parameters, buffers, optimizer } = this.#options;
    for (const [flat, shares] of sharesByFlat(parameters)) {
      if (isWriting(flat)) {
        yield* parameterPieces(flat, shares);
      }
      if (optimizer === undefined) {
        continue;
      }
      const stepped = shares.filter(({ param }) => this.#stepped.has(param));
      const own = progressOf(stepped, await optimizer.flatStateRuns(flat));
      const progress = await agree(flat, own);
      for (const { param, name } of stepped) {
        const step = progress.get(param)?.step;
        if (step !== undefined) {
          this.steps[name] = step;
        }
      }
      if (isWriting(flat) && progress.size > 0) {
        yield* await statePieces(flat, stepped, { optimizer, progress });
      }
    }
    for (const [name, buffer] of buffers) {
      yield bufferPiece(name, buffer);
    }
  }

  /** Copies what `pieces` gives to the host, for a save that is written while steps go on. */
  async capture(options: PiecesOptions = {}): Promise<CapturedModule> {
    const pieces: HeldPiece[] = [];
    for await (const piece of this.pieces(options)) {
      pieces.push(await copyOf(piece));
    }
    return { pieces, optimizer: this.optimizerRecord() };
  }

  /** Steps of `pieces` and the options of groups; undefined without an optimizer. */
  optimizerRecord(): SavedOptimizer | undefined {
    const { parameters, optimizer } = this.#options;
    return (
      optimizer && {
        kind: optimizer.kind,
        steps: this.steps,
        groups: optimizer.groups.map(({ params, ...options }) => ({
          ...(options as Readonly<Record<string, unknown>>),
          params: params.map((param) => parameters.get(param)!),
        })),
      }
    );
  }

  /**
   * Checks names, shapes and groups of a save, and then all pieces that will be read. Nothing is written.
   * @throws {StateDictError} where it does not fit
   * @throws {CheckpointCorruptError} where it is damaged
   */
  async check(save: Save, options: LoadOptions = {}): Promise<void> {
    const { strict, isForeign = () => false } = options;
    const { optimizer } = this.#options;
    const targets = this.#targets(save);
    const buffers = this.#buffers();
    const kept = new Set(
      [...this.#options.parameters].flatMap(([param, name]) =>
        this.#stepped.has(param) && param.requiresGrad ? [name] : [],
      ),
    );
    save.checkFit(
      [...targets.flatMap(({ expected }) => expected), ...buffers.map(({ piece }) => piece)],
      {
        ...(strict === undefined ? {} : { strict }),
        // State that nobody steps here is no loss; a frozen parameter may have some in a flat.
        ignores: ({ kind, name }: TensorSpec) =>
          isForeign(name) || (kind === 'state' && !kept.has(name)),
      },
    );
    if (optimizer !== undefined && (save.optimizer?.kind ?? optimizer.kind) !== optimizer.kind) {
      throw new StateDictError(
        `loadCheckpoint: expected state of ${optimizer.kind}, got that of ${save.optimizer!.kind}. Make the optimizer that was saved, or load without one.`,
      );
    }
    if (optimizer !== undefined && save.optimizer?.groups.length !== optimizer.groups.length) {
      throw new StateDictError(
        `loadCheckpoint: expected ${optimizer.groups.length} saved parameter groups, got ${save.optimizer?.groups.length ?? 'no optimizer state'}. Pass the optimizer to saveCheckpoint, with the same groups.`,
      );
    }
    await save.verify([
      ...targets.flatMap(({ pieces }) => pieces),
      ...buffers.map(({ piece }) => piece),
    ]);
  }

  /** Loads a save that was checked: parameters, state, buffers, and the options of groups. */
  async load(save: Save): Promise<void> {
    for (const target of this.#targets(save)) {
      await target.begin();
      await save.fill(target.pieces);
      await target.end();
    }
    for (const { piece, end } of this.#buffers()) {
      await save.fill([piece]);
      await end();
    }
    const { optimizer } = this.#options;
    for (const [i, { params: _, ...options }] of (save.optimizer?.groups ?? []).entries()) {
      Object.assign(optimizer?.groups[i] ?? {}, options);
    }
  }

  /** A check that no flat changes until it is called: a step between two pieces would be half saved. */
  noteVersions(operation: string): () => void {
    const flats = [...sharesByFlat(this.#options.parameters).keys()];
    const versions = flats.map(({ storage }) => storage.version);
    return () => {
      const changed = flats.find(({ storage }, i) => storage.version !== versions[i]);
      if (changed !== undefined) {
        throw new NnConfigError(
          `${operation}: expected parameters at rest until it ends, got a step or a load of ${nameOf(changed)} beside it. Await it first.`,
        );
      }
    };
  }

  #targets(save: Save): FlatTarget[] {
    const { parameters, optimizer } = this.#options;
    const options = { save, optimizer, stepped: this.#stepped };
    return [...sharesByFlat(parameters)].map(
      ([flat, shares]) => new FlatTarget(flat, shares, options),
    );
  }

  #buffers(): { readonly piece: WantedPiece; end(): Promise<void> }[] {
    return this.#options.buffers.map(([name, buffer]) => bufferTarget(name, buffer));
  }
}

/** The piece with its values as they are when it is read here. */
async function copyOf(piece: HeldPiece): Promise<HeldPiece> {
  const { start, end, dtype } = piece;
  const elementBytes = byteSize(dtype);
  const bytes = new Uint8Array((end - start) * elementBytes);
  for (let from = start; from < end; from += COPY_ELEMENTS) {
    const part = await piece.read(from, Math.min(end, from + COPY_ELEMENTS));
    bytes.set(part, (from - start) * elementBytes);
  }
  const read = async (from: number, to: number) =>
    bytes.subarray((from - start) * elementBytes, (to - start) * elementBytes);
  return { ...piece, read };
}

/** A buffer's values, floats in f32 whatever it is computed in. */
function bufferSpec(name: string, { dtype, shape }: Tensor): TensorSpec {
  return { kind: 'buffer', name, dtype: isFloat(dtype) ? 'f32' : dtype, shape };
}

function bufferPiece(name: string, buffer: Tensor): HeldPiece {
  const spec = bufferSpec(name, buffer);
  return {
    ...spec,
    start: 0,
    end: buffer.size,
    read: async (start, end) => {
      const bytes = await buffer.toBytes();
      const isSame = spec.dtype === buffer.dtype;
      const values = isSame ? bytes : fromF32Array(toF32Array(bytes, buffer.dtype), spec.dtype);
      return values.subarray(start * byteSize(spec.dtype), end * byteSize(spec.dtype));
    },
  };
}

function bufferTarget(name: string, buffer: Tensor): { piece: WantedPiece; end(): Promise<void> } {
  const spec = bufferSpec(name, buffer);
  let values: Uint8Array | undefined;
  return {
    piece: {
      ...spec,
      start: 0,
      end: buffer.size,
      write: (start, bytes) => {
        values ??= new Uint8Array(buffer.size * byteSize(spec.dtype));
        values.set(bytes, start * byteSize(spec.dtype));
      },
    },
    end: async () => {
      if (values === undefined) {
        return; // not saved
      }
      const isSame = spec.dtype === buffer.dtype;
      const bytes = isSame ? values : fromF32Array(toF32Array(values, spec.dtype), buffer.dtype);
      buffer.storage.write(bytes, buffer.offset * byteSize(buffer.dtype));
    },
  };
}
