// Moves a module's parameters into flat storages, so that a step, clearing the gradients and their
// norm take one dispatch each. It does on one device what sharding does over ranks. In mixed
// precision the flats are f32 masters, and the module computes in a 16-bit copy of them.
//
// Note [packed copies]
// The copies are made when the packed module is called, unless they are those of the present
// masters, and freed at the end of a backward, after which a step mostly changes the masters. A
// forward outside any graph keeps them for the next one. Mixed precision packs into several flats:
// what a backward adds up in 16 bits then becomes an f32 gradient part by part, so that no moment
// has all of both.

import type { DType, Pass, Tensor } from '@shardweave/tensor-core';
import { checkOptions, oneOf, optional } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { type FlatLeaf, FlatParameter } from '../flat/flat-parameter.js';
import { flatLayout } from '../flat/layout/flat-layout.js';
import { PackedGradient } from '../flat/packed-gradient.js';
import { castFloats } from '../map-tensors.js';
import { type Module, requireModule } from '../module.js';
import { castInPlace } from '../parameters/cast-in-place.js';
import { decodeTo, encodingOf } from '../parameters/encoded-parameter.js';

/** Options of packParameters: the precision of computation. */
export interface PackOptions {
  /**
   * The dtype in which the module computes. Its parameters are copies in it of f32 masters, which
   * optimizers, norms, state dicts and saves see, and gradients rest in f32. Inputs and buffers are
   * cast to it where they are floats. Default 'f32', which needs no copies.
   */
  readonly computeDType?: 'f32' | 'bf16' | 'f16';
}

/** The owner of packed parameters. Dispose it after the module. */
export interface PackedParameters extends Disposable {
  /**
   * The packed parameters, f32 [elements] with padding between them: one tensor where computation
   * is in f32. The `grad` of each holds its gradients, and zeros in the padding.
   */
  readonly flats: readonly Tensor[];
  dispose(): void;
}

/** A flat of mixed precision is full from this many elements on. The number is not measured. */
const FULL_FLAT_ELEMENTS = 2 ** 23;

/**
 * Packs the trainable parameters of a plain module into flat tensors, and with a 16-bit
 * computeDType also frozen f32 ones. Their paths, shapes and values stay. Their gradients then
 * arrive in the flats' `grad` instead of each parameter's.
 * @throws {NnConfigError} for a trainable parameter that is not f32, and for one that has a
 * gradient, or is already sharded or packed
 */
export function packParameters(module: Module, options: PackOptions = {}): PackedParameters {
  requireModule('packParameters', module, NnConfigError);
  checkOptions<PackOptions>('packParameters', options, {
    computeDType: optional(oneOf('f32', 'bf16', 'f16')),
  });
  const { computeDType = 'f32' } = options;
  const isMixed = computeDType !== 'f32';
  const [trained, frozen] = leavesOf(module, { isMixed });
  for (const parameter of isMixed ? module.parameters() : []) {
    if (parameter.blocks !== undefined) {
      decodeTo(parameter, computeDType);
    }
  }
  const parts = isMixed ? [...cut(trained), ...cut(frozen)] : [trained];
  const packed = parts.map((leaves, i) =>
    pack(module, leaves, { name: `packed.${i}`, computeDType }),
  );
  const remove = isMixed ? computeIn(module, packed, computeDType) : () => {};
  const dispose = () => {
    remove();
    for (const flat of packed) {
      flat.dispose();
    }
  };
  return { flats: packed.map(({ flat }) => flat), dispose, [Symbol.dispose]: dispose };
}

/**
 * The parameters to pack, trained and frozen.
 * @throws {NnConfigError} as packParameters does
 */
function leavesOf(
  module: Module,
  { isMixed }: { readonly isMixed: boolean },
): readonly [trained: FlatLeaf[], frozen: FlatLeaf[]] {
  const isCopied = ({ dtype }: Tensor) => isMixed && dtype === 'f32';
  const leaves = module
    .namedParameters()
    .map(([path, tensor]) => ({ path, tensor }))
    .filter(({ tensor }) => tensor.requiresGrad || (isCopied(tensor) && !encodingOf(tensor)));
  for (const { path, tensor } of leaves) {
    requirePlain(path, tensor);
  }
  return [
    leaves.filter(({ tensor }) => tensor.requiresGrad),
    leaves.filter(({ tensor }) => !tensor.requiresGrad),
  ];
}

/** Cuts parameters into runs, each of which makes a flat. */
function cut(leaves: readonly FlatLeaf[]): FlatLeaf[][] {
  const runs: FlatLeaf[][] = [];
  let elements = FULL_FLAT_ELEMENTS;
  for (const leaf of leaves) {
    if (elements >= FULL_FLAT_ELEMENTS) {
      runs.push([]);
      elements = 0;
    }
    runs.at(-1)!.push(leaf);
    elements += leaf.tensor.size;
  }
  return runs;
}

function pack(
  { device }: Module,
  parameters: readonly FlatLeaf[],
  { name, computeDType }: { readonly name: string; readonly computeDType: DType },
): FlatParameter {
  const leaves = parameters.map(({ tensor }) => tensor);
  const layout = flatLayout(leaves.map(({ size }) => size));
  const absentHint =
    "Packed parameters of mixed precision are copies that are made when the packed module is called, and freed after backward. Call that module, or read the parameter's value in a state dict.";
  const packed = new FlatParameter({ name, parameters, layout, device, computeDType, absentHint });
  packed.takeOverHere();
  const { flat } = packed;
  const sink = new PackedGradient({ flat, layout, leaves, dtype: computeDType });
  for (const leaf of leaves) {
    leaf.gradSink = sink;
    leaf.piece = { ...leaf.piece!, isPacked: true };
  }
  return packed;
}

/**
 * Makes the module compute in copies of the flats. See Note [packed copies].
 * @returns a function that ends it
 */
function computeIn(
  module: Module,
  packed: readonly FlatParameter[],
  computeDType: DType,
): () => void {
  const { device } = module;
  const load = async () => {
    for (const { full } of packed) {
      full.keepWrites();
      if (!full.isPresent) {
        await full.finishLoad(full.startLoad());
      }
    }
  };
  const freeAfter = (pass: Pass) => {
    pass.onEnd(() => {
      for (const { full } of packed) {
        full.keepWrites();
        full.drop();
      }
    });
    pass.onFailure(() => {
      for (const { full } of packed) {
        full.drop();
      }
    });
  };
  return module.aroundForward({
    before: async (args) => {
      await load();
      for (const [, buffer] of module.namedBuffers()) {
        castInPlace(buffer, computeDType);
      }
      return castFloats(args, computeDType);
    },
    after: (output) => {
      device.beforeGradientOf(output, async (pass) => {
        await load();
        freeAfter(pass);
      });
    },
  });
}

function requirePlain(name: string, parameter: Tensor): void {
  const problem =
    parameter.dtype !== 'f32'
      ? `is ${parameter.dtype}, not f32`
      : parameter.piece !== undefined || parameter.gradSink !== undefined
        ? 'is sharded or packed already'
        : parameter.grad !== undefined
          ? 'has a gradient; call zeroGrad first'
          : undefined;
  if (problem !== undefined) {
    throw new NnConfigError(`packParameters: '${name}' ${problem}.`);
  }
}
