// Puts adapters beside the linear layers of a plain model, and freezes all else.

import { castInPlace } from '../cast-in-place.js';
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
import { recipeOf } from '../flat/deferred-parameter.js';
import { Conv1D } from '../layers/conv1d.js';
import { Linear } from '../layers/linear.js';
import { joinPath, type Module } from '../module.js';
import { ParameterInit } from '../parameter-init.js';
import { type AdaptableLinear, LoraLinear } from './lora-linear.js';

/** Options of applyLora: the width of the adapters (Hu et al., 2021), and which layers get one. */
export interface LoraOptions {
  /** Columns of the narrow products. */
  readonly rank: number;
  /** The narrow products are multiplied by alpha / rank. Default twice the rank. */
  readonly alpha?: number;
  /** Default 0. */
  readonly dropout?: number;
  /**
   * 'all-linear' (default): every linear layer, which a language model's token table and head are
   * not. Or names: the last parts of the layers' paths ('q_proj', 'attn.c_attn'), of which each
   * must be found.
   */
  readonly targets?: 'all-linear' | readonly string[];
  /** What the frozen parameters become; deferred ones are then made so. Default as they are. */
  readonly baseDType?: 'f32' | 'f16' | 'bf16';
  /** Seed of the initial adapters; equal on all ranks. Default 0. */
  readonly seed?: number;
}

/** What a model was given, with the default values filled in. */
export interface LoraConfig {
  readonly rank: number;
  readonly alpha: number;
  readonly dropout: number;
  /** The paths of the layers that have adapters, in the model's order. */
  readonly layers: readonly string[];
}

/**
 * Gives linear layers of a plain model adapters, its only trained parameters from then on. Call it
 * before the model is packed, sharded or offloaded; adapters of deferred layers are deferred too.
 * @throws {NnConfigError} for a target that no layer has, a model that has adapters already, and
 * parameters
 *   that are sharded or packed; nothing is changed then
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
  const places = findLinears(model);
  const chosen = targets === 'all-linear' ? places : choose(places, targets);
  if (chosen.length === 0) {
    throw new NnConfigError(
      'applyLora: expected a model with linear layers, got one without. Adapters stand beside Linear and Conv1D layers.',
    );
  }
  for (const parameter of model.parameters()) {
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
  return { rank, alpha, dropout, layers: chosen.map(({ path }) => path) };
}

/** The adapted layers below a model, by path. */
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
  const isMatch = (path: string, target: string) => path === target || path.endsWith(`.${target}`);
  const unknown = targets.find((target) => !places.some(({ path }) => isMatch(path, target)));
  if (unknown !== undefined) {
    const names = [...new Set(places.map(({ path }) => path.split('.').at(-1)))];
    throw new NnConfigError(
      `applyLora: expected targets among the model's linear layers (${names.join(', ')}), got '${unknown}'.`,
    );
  }
  return places.filter(({ path }) => targets.some((target) => isMatch(path, target)));
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
