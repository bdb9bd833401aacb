// Replaces the linear layers of a plain model by adapted ones, and freezes all other parameters.

import {
  above,
  checkOptions,
  oneOf,
  optional,
  PROBABILITY,
  SEED,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { Conv1D } from '../layers/conv1d.js';
import { Linear } from '../layers/linear.js';
import type { Module } from '../module.js';
import { castInPlace } from '../parameters/cast-in-place.js';
import { recipeOf } from '../parameters/deferred-parameter.js';
import { joinPath } from '../parameters/join-path.js';
import { ParameterInit } from '../parameters/parameter-init.js';
import { type AdaptableLinear, LoraLinear } from './lora-linear.js';

/** Options of applyLora: the width of the adapters (Hu et al., 2021), and which layers get one. */
export interface LoraOptions {
  /** The rank of the adapters: rows of lora_A, columns of lora_B. */
  readonly rank: number;
  /** The adapters' product is multiplied by alpha / rank. Default twice the rank. */
  readonly alpha?: number;
  /** The probability of dropping an element of an adapter's input in training. Default 0. */
  readonly dropout?: number;
  /**
   * Which layers get adapters. 'all-linear' (default) means every Linear and Conv1D layer; a
   * language model's token table and head are neither. A list has ends of the layers' paths, such
   * as 'q_proj' or 'attn.c_attn'; each of them must match a layer.
   */
  readonly targets?: 'all-linear' | readonly string[];
  /**
   * Modules that are trained whole beside the adapters and get none, such as a classifier's new
   * head ('classifier', 'score'): ends of their paths, each of which must match a module. Default
   * none.
   */
  readonly modulesToSave?: readonly string[];
  /**
   * The dtype that all frozen parameters are converted to; deferred ones are later made in it. By
   * default they keep theirs.
   */
  readonly baseDType?: 'f32' | 'f16' | 'bf16';
  /** The seed of the initial adapters, equal on all ranks. Default 0. */
  readonly seed?: number;
}

/** The adapters that a model has, with all default values filled in. */
export interface LoraConfig {
  readonly rank: number;
  readonly alpha: number;
  readonly dropout: number;
  /** The paths of the adapted layers, in the model's order. */
  readonly layers: readonly string[];
  /** The paths of modules that are trained whole. Default none. */
  readonly modulesToSave?: readonly string[];
}

/**
 * Puts adapters beside linear layers of a plain model and freezes its other parameters, so that
 * only the adapters and modulesToSave are trained. Call it before the model is packed, sharded or
 * offloaded. Adapters of deferred layers are deferred too.
 * @throws {NnConfigError} for options out of range, a target that matches no layer, a model without
 * linear layers, one that has adapters already, and parameters that are packed, sharded or
 * offloaded. Nothing has changed then.
 */
export function applyLora(model: Module, options: LoraOptions): LoraConfig {
  checkOptions<LoraOptions>('applyLora', options, {
    rank: whole(1),
    alpha: optional(above(0)),
    dropout: optional(PROBABILITY),
    targets: optional({
      expected: "'all-linear' or a list of names",
      holds: (value) => value === 'all-linear' || isNames(value),
    }),
    modulesToSave: optional({ expected: 'a list of names', holds: isNames }),
    baseDType: optional(oneOf('f32', 'f16', 'bf16')),
    seed: optional(SEED),
  });
  const {
    rank,
    alpha = 2 * rank,
    dropout = 0,
    targets = 'all-linear',
    seed = 0,
    baseDType,
  } = options;
  requirePlain(model);
  const modulesToSave = matching(
    'modulesToSave',
    options.modulesToSave ?? [],
    model.namedModules().map(([path]) => path),
  );
  const isSaved = (path: string) =>
    modulesToSave.some((saved) => path === saved || path.startsWith(`${saved}.`));
  const places = findLinears(model).filter(({ path }) => !isSaved(path));
  const chosen = targets === 'all-linear' ? places : choose(places, targets);
  if (chosen.length === 0) {
    throw new NnConfigError(
      'applyLora: expected a model with linear layers, got one without. Adapters stand beside Linear and Conv1D layers.',
    );
  }
  for (const [path, parameter] of model.namedParameters()) {
    if (isSaved(path)) {
      continue;
    }
    parameter.requiresGrad = false;
    castInPlace(parameter, baseDType ?? parameter.dtype);
  }
  for (const { path, parent, name, layer } of chosen) {
    const isDeferred = recipeOf(layer.weight) !== undefined;
    const init = new ParameterInit(model.device, { seed, path, isDeferred });
    const adapted = new LoraLinear(layer, { rank, alpha, dropout, init });
    adapted.train(layer.isTraining);
    parent.replaceChild(name, adapted);
    for (const [below, parameter] of adapted.namedParameters()) {
      parameter.name = joinPath(path, below);
    }
  }
  const layers = chosen.map(({ path }) => path);
  return { rank, alpha, dropout, layers, ...(modulesToSave.length > 0 && { modulesToSave }) };
}

/** The adapted layers of a model, by path. */
export function loraLayers(model: Module): Map<string, LoraLinear> {
  return new Map(
    model.namedModules().filter((entry): entry is [string, LoraLinear] => {
      return entry[1] instanceof LoraLinear;
    }),
  );
}

interface Place {
  readonly path: string;
  readonly parent: Module;
  readonly name: string;
  readonly layer: AdaptableLinear;
}

function findLinears(model: Module): Place[] {
  return model.namedModules().flatMap(([path, parent]) =>
    [...parent.children()].flatMap(([name, layer]): Place[] => {
      const isLinear = layer instanceof Linear || layer instanceof Conv1D;
      return isLinear
        ? [{ path: joinPath(path, parent.childPrefix(name)), parent, name, layer }]
        : [];
    }),
  );
}

function choose(places: readonly Place[], targets: readonly string[]): Place[] {
  const paths = places.map(({ path }) => path);
  const chosen = new Set(matching('targets', targets, paths));
  return places.filter(({ path }) => chosen.has(path));
}

/** The paths that end with one of the names, in their order. */
function matching(
  option: 'targets' | 'modulesToSave',
  names: readonly string[],
  paths: readonly string[],
): string[] {
  const isMatch = (path: string, name: string) => path === name || path.endsWith(`.${name}`);
  const unknown = names.find((name) => !paths.some((path) => isMatch(path, name)));
  if (unknown !== undefined) {
    const ends = [...new Set(paths.map((path) => path.split('.').at(-1)))].filter(isNamed);
    const kind = option === 'targets' ? 'linear layers' : 'modules';
    throw new NnConfigError(
      `applyLora: expected ${option} among the model's ${kind} (${ends.join(', ')}), got '${unknown}'.`,
    );
  }
  return paths.filter((path) => names.some((name) => isMatch(path, name)));
}

/** Whether the end of a path is a name, and not a place in a list or nothing. */
function isNamed(end: string | undefined): boolean {
  return end !== undefined && !/^\d*$/.test(end);
}

function requirePlain(model: Module): void {
  if (loraLayers(model).size > 0) {
    throw new NnConfigError('applyLora: expected a model without adapters, got one that has them.');
  }
  const foreign = model.namedParameters().find(([, { piece }]) => piece !== undefined);
  if (foreign !== undefined) {
    throw new NnConfigError(
      `applyLora: expected plain parameters, got '${foreign[0]}', which is packed, sharded or offloaded. Give adapters first.`,
    );
  }
}

function isNames(value: unknown): value is readonly string[] {
  return (
    Array.isArray(value) &&
    value.length > 0 &&
    value.every((name) => typeof name === 'string' && name !== '')
  );
}
