// What a process saves of a model and its optimizer, and what it loads into them.

import type {
  HeldPiece,
  Save,
  SavedOptimizer,
  TensorSpec,
  WantedPiece,
} from '@shardweave/checkpoint';
import { byteSize, type DType, isFloat, type Tensor } from '@shardweave/tensor-core';
import { NnConfigError, StateDictError } from '../errors.js';
import { nameOf } from '../flat/layout/flat-plan.js';
import { flatHomeOf } from '../flat/stores/flat-home.js';
import type { SavedGroup } from '../optim/match-groups.js';
import { CapturedFlats, type CapturedModule } from './captured-module.js';
import { FlatTarget } from './flat-target.js';
import {
  type AnyOptimizer,
  deviceSource,
  type FlatProgress,
  type FlatSource,
  parameterPieces,
  progressOf,
  restingSource,
  type SavedNames,
  sharesByFlat,
  statePieces,
} from './held-flats.js';
import { convertBytes } from './state-entry.js';

/**
 * What a HeldModule saves and loads: parameters and buffers by name, and the optimizer whose state
 * goes with them.
 */
export interface HeldModuleOptions {
  readonly parameters: SavedNames;
  /** Buffers by name, given only where this process writes or loads them. */
  readonly buffers: readonly (readonly [string, Tensor])[];
  readonly optimizer?: AnyOptimizer | undefined;
  /** The names under which groups list their parameters, equal on all ranks. */
  readonly groupNames: SavedNames;
  /** Leaves frozen parameters out. Default false. */
  readonly onlyTrained?: boolean | undefined;
}

/** How several ranks share the writing of a save between them. */
export interface PiecesOptions {
  /** Whether this process writes anything. */
  readonly isWriter: boolean;
  /** Agrees with other ranks on a flat's steps and state tensors. */
  agree(flat: Tensor, own: FlatProgress): Promise<FlatProgress>;
  /** Whether this process writes a flat. */
  isWriting(flat: Tensor): boolean;
}

/** Reads a storage after everything that is queued. */
function sourceInOrder(flat: Tensor): FlatSource {
  const home = flatHomeOf(flat);
  return home?.holdsState
    ? restingSource(flat, home)
    : deviceSource(flat, (storage, ...range) => storage.read(...range));
}

/** What a load accepts that does not match the module exactly. */
export interface LoadOptions {
  /** Whether missing and unexpected names are an error. Default true. */
  readonly strict?: boolean | undefined;
  /** Whether a saved parameter or buffer belongs to another module. Default: none does. */
  isForeign?(name: string): boolean;
}

/**
 * A module, and the optimizer that steps it, as pieces of a save: `pieces` gives what this process
 * holds of them, and loading puts saved pieces back where they belong.
 */
export class HeldModule {
  readonly #options: HeldModuleOptions;
  /** The names of all parameters, frozen ones too, which groups may have. */
  readonly #groupNames: SavedNames;
  /** The parameters that the optimizer steps. */
  readonly #stepped: ReadonlySet<Tensor>;
  /** The steps of each parameter whose state `pieces` has given. */
  readonly steps: Record<string, number> = {};

  /** @throws {NnConfigError} where the optimizer steps a parameter that has no name here */
  constructor(options: HeldModuleOptions) {
    const { optimizer, onlyTrained = false } = options;
    const held = [...options.parameters].filter(([param]) => !onlyTrained || param.requiresGrad);
    this.#options = { ...options, parameters: new Map(held) };
    this.#groupNames = options.groupNames;
    this.#stepped = new Set(optimizer?.parameters());
    const foreign = [...this.#stepped].find((param) => !options.parameters.has(param));
    if (foreign !== undefined) {
      throw new NnConfigError(
        `checkpoint: expected an optimizer of the module's parameters, got ${nameOf(foreign)}. Pass the module around all that it steps.`,
      );
    }
  }

  /** All pieces to write, flat by flat, and then the buffers. */
  async *pieces(options: PiecesOptions): AsyncGenerator<HeldPiece> {
    for await (const { pieces } of this.#flats(options, sourceInOrder)) {
      yield* pieces;
    }
    yield* this.#bufferPieces();
  }

  /**
   * The same as `pieces`, to be written while steps go on. Buffers are copied, because a forward
   * changes them.
   * @throws {NnConfigError} for parameters at rest in a store that can't pin them
   */
  async capture(options: PiecesOptions): Promise<CapturedModule> {
    const flats = new CapturedFlats(this.#options.optimizer);
    try {
      const sourceOf = (flat: Tensor) => flats.source(flat);
      for await (const { flat, pieces } of this.#flats(options, sourceOf)) {
        flats.add(flat, pieces);
      }
      const buffers: HeldPiece[] = [];
      for (const buffer of this.#bufferPieces()) {
        buffers.push(await copyOf(buffer));
      }
      const { isWriter: isWriting } = options;
      return flats.captured({ buffers, isWriting, optimizer: this.optimizerRecord() });
    } catch (error) {
      await flats.release().catch(() => undefined); // the first error is the one to tell
      throw error;
    }
  }

  /** Pieces of each flat, where there are any. */
  async *#flats(
    { agree, isWriting }: PiecesOptions,
    sourceOf: (flat: Tensor) => FlatSource | Promise<FlatSource>,
  ): AsyncGenerator<{ readonly flat: Tensor; readonly pieces: readonly HeldPiece[] }> {
    const { parameters, optimizer } = this.#options;
    for (const [flat, shares] of sharesByFlat(parameters)) {
      const source = isWriting(flat) ? await sourceOf(flat) : undefined;
      if (source !== undefined) {
        yield { flat, pieces: parameterPieces(flat, shares, source.parameter) };
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
      if (source !== undefined && progress.size > 0) {
        const bytesOf = await source.state(optimizer);
        yield { flat, pieces: statePieces(stepped, { progress, bytesOf }) };
      }
    }
  }

  #bufferPieces(): HeldPiece[] {
    return this.#options.buffers.map(([name, buffer]) => bufferPiece(name, buffer));
  }

  /** Steps of `pieces` and the options of groups; undefined without an optimizer. */
  optimizerRecord(): SavedOptimizer | undefined {
    const { optimizer } = this.#options;
    return (
      optimizer && {
        kind: optimizer.kind,
        steps: this.steps,
        groups: optimizer.groups.map(({ params, ...options }) => ({
          ...(options as Readonly<Record<string, unknown>>),
          params: params.map((param) => this.#groupNames.get(param)!),
        })),
      }
    );
  }

  /**
   * Checks names, shapes and groups of a save, and then all pieces that will be read. Nothing is
   * written.
   * @throws {StateDictError} where it does not fit
   * @throws {CheckpointCorruptError} where it is damaged
   */
  async check(save: Save, options: LoadOptions = {}): Promise<void> {
    const { strict = true, isForeign = () => false } = options;
    const buffers = this.#buffers();
    const kept = new Set(
      [...this.#options.parameters].flatMap(([param, name]) =>
        this.#stepped.has(param) && param.requiresGrad ? [name] : [],
      ),
    );
    // State is compared last, because the groups tell which there must be, and a group that does
    // not fit is better told than the state that it would have had.
    const isState = ({ kind }: TensorSpec) => kind === 'state';
    const values = this.#targets(save, []).flatMap(({ expected }) => expected);
    save.checkFit([...values, ...buffers.map(({ piece }) => piece)], {
      strict,
      ignores: (spec) => isForeign(spec.name) || isState(spec),
    });
    const targets = this.#targets(save, this.#groupsFrom(save, strict));
    save.checkFit(targets.flatMap(({ expected }) => expected).filter(isState), {
      strict,
      // Saved state of a parameter that nothing steps here is left out: it may be frozen now.
      ignores: (spec) => isForeign(spec.name) || !isState(spec) || !kept.has(spec.name),
    });
    await save.verify([
      ...targets.flatMap(({ pieces }) => pieces),
      ...buffers.map(({ piece }) => piece),
    ]);
  }

  /** Loads a save that was checked: the options of groups, parameters, state and buffers. */
  async load(save: Save): Promise<void> {
    const groups = this.#groupsFrom(save, false);
    this.#options.optimizer?.takeOptions(groups); // first, for state is made as options need it
    for (const target of this.#targets(save, groups)) {
      await target.begin();
      await save.fill(target.pieces);
      await target.end();
    }
    for (const { piece, end } of this.#buffers()) {
      await save.fill([piece]);
      await end();
    }
  }

  /**
   * The optimizer's groups with their saved options; none without an optimizer.
   * @throws {StateDictError} where the save has another optimizer, none, or other groups
   */
  #groupsFrom(save: Save, isStrict: boolean): AnyOptimizer['groups'] {
    const { optimizer } = this.#options;
    if (optimizer === undefined) {
      return [];
    }
    if (save.optimizer?.kind !== optimizer.kind) {
      const got =
        save.optimizer === undefined ? 'no optimizer state' : `that of ${save.optimizer.kind}`;
      throw new StateDictError(
        `loadCheckpoint: expected state of ${optimizer.kind}, got ${got}. Make the optimizer that was saved, or load without one.`,
      );
    }
    const groups = save.optimizer.groups as readonly unknown[] as readonly SavedGroup[];
    return optimizer.groupsFrom(groups, this.#groupNames, {
      operation: 'loadCheckpoint',
      strict: isStrict,
    });
  }

  /** The flats to load, with the state that groups keep of their parameters. */
  #targets(save: Save, groups: AnyOptimizer['groups']): FlatTarget[] {
    const { parameters, optimizer } = this.#options;
    const stepped = new Map(
      groups.flatMap((group) => {
        const names = optimizer!.stateNamesOf(group);
        return group.params.map((param) => [param, names] as const);
      }),
    );
    return [...sharesByFlat(parameters)].map(
      ([flat, shares]) => new FlatTarget(flat, shares, { save, optimizer, stepped }),
    );
  }

  #buffers(): { readonly piece: WantedPiece; end(): Promise<void> }[] {
    return this.#options.buffers.map(([name, buffer]) => bufferTarget(name, buffer));
  }
}

/** The piece with its values as they are now. */
async function copyOf(piece: HeldPiece): Promise<HeldPiece> {
  const { start, end, dtype } = piece;
  const elementBytes = byteSize(dtype);
  const bytes = await piece.read(start, end, new Uint8Array((end - start) * elementBytes));
  const read = async (from: number, to: number) =>
    bytes.subarray((from - start) * elementBytes, (to - start) * elementBytes);
  return { ...piece, read };
}

/** A buffer's values, floats in f32 whatever it is computed in. */
function bufferSpec(
  name: string,
  { dtype, shape }: Tensor,
): TensorSpec & { readonly dtype: DType } {
  return { kind: 'buffer', name, dtype: isFloat(dtype) ? 'f32' : dtype, shape };
}

function bufferPiece(name: string, buffer: Tensor): HeldPiece {
  const spec = bufferSpec(name, buffer);
  return {
    ...spec,
    start: 0,
    end: buffer.size,
    read: async (start, end) => {
      const values = convertBytes(await buffer.toBytes(), buffer.dtype, spec.dtype);
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
      const bytes = convertBytes(values, spec.dtype, buffer.dtype);
      buffer.storage.write(bytes, buffer.offset * byteSize(buffer.dtype));
    },
  };
}
