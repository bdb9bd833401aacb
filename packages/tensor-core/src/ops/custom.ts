// Ops that users define: a function of one output element in WGSL, the same function in JavaScript
// for devices that compute in the host's memory, and a gradient made of other ops. Inputs and
// parameters have the same names in both.

import { type DType, isFloat } from '@shardweave/dtypes';
import { DTypeError, GraphError, OptionError, ShapeError } from '../errors.js';
import type { CustomKernel, PlainArray } from '../kernel-calls/custom.js';
import {
  FUNCTION,
  OBJECT,
  type OptionRule,
  optional,
  optionChecks,
  shown,
  TEXT,
} from '../options.js';
import { elementCountOf, isTensor, type Shape, type Tensor } from '../tensor.js';
import {
  requireBindable,
  requireFloat,
  requireInteger,
  requireSameDevice,
  shapeText,
} from './checks.js';

/** What an input may hold: any float dtype, either integer dtype, or one dtype alone. */
export type InputKind = 'float' | 'integer' | DType;

/** What the gradient function of a custom op gets. */
export interface CustomGradient<Name extends string, Param extends string> {
  /** The inputs that are saved. */
  readonly inputs: Readonly<Record<Name, Tensor>>;
  /** The op's result, where `saved` names it as 'out'. */
  readonly out: Tensor | undefined;
  /** The gradient of the result. */
  readonly dy: Tensor;
  readonly params: Readonly<Record<Param, number>>;
  /** The inputs whose gradients somebody uses. */
  readonly needs: Readonly<Record<Name, boolean>>;
}

type Gradients<Name extends string> = Readonly<Partial<Record<Name, Tensor | undefined>>>;

/**
 * The description of an op that defineOp makes: its inputs and parameters, the WGSL that computes
 * one element on a GPU, the plain TypeScript twin that other devices run, and its gradient.
 */
export interface CustomOpSpec<Name extends string, Param extends string> {
  /** The op's name in errors, traces and labels of shaders. */
  readonly name: string;
  /** The inputs, at most 7, under names that are WGSL identifiers. */
  readonly inputs: Readonly<Record<Name, InputKind>>;
  /** Numbers that a call passes. Those of f32 are rounded before either function sees them. */
  readonly params?: Readonly<Record<Param, 'f32' | 'u32'>>;
  /** Returns the shape and dtype of the result. The default are those of the first input. */
  readonly output?: (
    inputs: Readonly<Record<Name, Tensor>>,
    params: Readonly<Record<Param, number>>,
  ) => { readonly shape: Shape; readonly dtype: DType };
  /**
   * Declares `fn element(i: u32) -> f32` (i32 or u32 where the result is), the value of the
   * result's element i, and what it calls. For an input x: `load_x(j)`, f32 for any float storage,
   * and `P.x_size`; for a parameter p: `P.p`; and `P.size` of the result. Beside WGSL's own there
   * are `is_nan`, and `exp_of` and `log_of`, which keep NaN where drivers may not.
   */
  readonly wgsl: string;
  /**
   * The same function in JavaScript, for all elements: it fills out.data, which holds zeros at
   * first. Its values are rounded to the result's dtype once, at the end.
   */
  readonly plain: (
    inputs: Readonly<Record<Name, PlainArray>>,
    out: PlainArray,
    params: Readonly<Record<Param, number>>,
  ) => void;
  /** What is kept in memory for the gradient. The default is all inputs. */
  readonly saved?: readonly (NoInfer<Name> | 'out')[];
  /** Computes the gradients of float inputs by other ops. One that is left out is zero. */
  readonly gradient?: (
    call: CustomGradient<NoInfer<Name>, NoInfer<Param>>,
  ) => Gradients<NoInfer<Name>> | Promise<Gradients<NoInfer<Name>>>;
}

/** The parameters of a call of a CustomOp, as a list: empty for an op without any. */
export type ParamsOf<Param extends string> = [Param] extends [never]
  ? []
  : [params: Readonly<Record<Param, number>>];

/** An op that defineOp made. A single input may be given without its name. */
export interface CustomOp<Name extends string, Param extends string> {
  (inputs: Tensor | Readonly<Record<Name, Tensor>>, ...params: ParamsOf<Param>): Tensor;
  /** The plain twin over float64 values, for opCase. */
  plain(
    inputs: Readonly<Record<Name, PlainArray>>,
    options: { readonly shape: Shape; readonly params?: Readonly<Record<Param, number>> },
  ): PlainArray;
}

const KINDS = ['float', 'integer', 'f32', 'f16', 'bf16', 'i32', 'u32'];
/** Every WebGPU device binds at least 8 storage buffers to a kernel, and the result takes one. */
const MAX_INPUTS = 7;
/** A uniform block has 64 words, of which inputs take two each, the result one, the grid three. */
const MAX_PARAMS = 40;
const IDENTIFIER = /^[a-zA-Z][a-zA-Z0-9_]*$/;
/** Identifiers of the generated kernel around `element`, which inputs and params cannot have. */
const TAKEN = ['out', 'size', 'words', 'per_lane', 'element', 'value', 'main', 'P'];

const { checkOptions, checkValue } = optionChecks(OptionError);

const PARAM_RULES: Readonly<Record<'f32' | 'u32', OptionRule>> = {
  f32: { expected: 'a number', holds: (value) => typeof value === 'number' },
  u32: {
    expected: 'a whole number below 2^32',
    holds: (value) => Number.isInteger(value) && (value as number) >>> 0 === value,
  },
};

/**
 * Makes an op, once, at the top of a file. Devices that compute on the host's memory (reference,
 * cpu) run `plain` there, the cpu device when its queue has come to it: its threads wait meanwhile.
 * Others run `wgsl`, every operand in one binding. A shader that does not compile, and on the cpu
 * device an error thrown by `plain`, reject the next call that waits; the reference device throws
 * at once. What `gradient` throws rejects backward.
 * @throws {OptionError} for a wrong spec
 */
export function defineOp<const Name extends string, const Param extends string = never>(
  spec: CustomOpSpec<Name, Param>,
): CustomOp<Name, Param> {
  const { kernel, names } = checkSpec(spec);
  const { name } = spec;
  const saved: readonly string[] = spec.saved ?? names;

  const op = (given: Tensor | Readonly<Record<Name, Tensor>>, values: object = {}): Tensor => {
    const inputs = inputsOf(spec, names, given);
    const params = paramsOf(spec, values) as Readonly<Record<Param, number>>;
    const operands = names.map((key) => inputs[key]);
    const [first] = operands as [Tensor];
    const { device } = first;
    const { shape, dtype } = spec.output?.(inputs, params) ?? first;
    const out = device.empty(shape, { dtype });
    requireBindable(name, ...operands, out);
    if (out.size > 0) {
      requireElements(name, operands);
      device.run('custom', {
        kernel,
        inputs: record(names, (key) => inputs[key].view()),
        out: out.view(),
        shapes: { ...record(names, (key) => inputs[key].shape), out: out.shape },
        params,
      });
    }
    if (!isFloat(dtype)) {
      return out;
    }
    device.record({
      name,
      inputs: operands,
      outputs: [out],
      saved: saved.map((key) => (key === 'out' ? out : inputs[key as Name])),
      backward: ([dy], needed) => {
        const { gradient } = spec;
        if (gradient === undefined) {
          throw new GraphError(
            `backward: expected '${name}' to have a gradient, but its definition has none. Define it, or call the op on detached tensors.`,
          );
        }
        const kept = names.filter((key) => saved.includes(key));
        const results = gradient({
          inputs: record(kept, (key) => inputs[key]),
          out: saved.includes('out') ? out : undefined,
          dy: dy!,
          params,
          needs: record(names, (key) => needed[names.indexOf(key)]!),
        });
        const ordered = (found: Gradients<Name>) => gradientsOf(name, names, found);
        return results instanceof Promise ? results.then(ordered) : ordered(results);
      },
    });
    return out;
  };

  return Object.assign(op, {
    plain: (
      inputs: Readonly<Record<Name, PlainArray>>,
      options: { readonly shape: Shape; readonly params?: Readonly<Record<Param, number>> },
    ): PlainArray => {
      const { shape } = options;
      const out = { shape, data: new Float64Array(elementCountOf(shape)) };
      kernel.plain(inputs, out, paramsOf(spec, options.params ?? {}));
      return out;
    },
  }) as CustomOp<Name, Param>;
}

function checkSpec<Name extends string, Param extends string>(
  spec: CustomOpSpec<Name, Param>,
): { readonly kernel: CustomKernel; readonly names: readonly Name[] } {
  checkOptions<CustomOpSpec<Name, Param>>('defineOp', spec, {
    name: TEXT,
    inputs: OBJECT,
    params: optional(OBJECT),
    output: optional(FUNCTION),
    wgsl: TEXT,
    plain: FUNCTION,
    saved: optional({ expected: 'an array of names', holds: Array.isArray }),
    gradient: optional(FUNCTION),
  });
  const { name, wgsl, plain, inputs, params = {} as Readonly<Record<Param, 'f32' | 'u32'>> } = spec;
  const owner = `defineOp '${name}'`;
  const names = Object.keys(inputs) as Name[];
  checkValue(owner, 'the number of inputs', names.length, between(1, MAX_INPUTS));
  checkValue(owner, 'the number of params', Object.keys(params).length, between(0, MAX_PARAMS));
  const isFree = (value: unknown) =>
    IDENTIFIER.test(String(value)) && !TAKEN.includes(String(value));
  const free = {
    expected: `a WGSL identifier other than ${TAKEN.join(', ')}`,
    holds: isFree,
  };
  for (const [key, kind] of Object.entries(inputs)) {
    checkValue(owner, 'the name of an input', key, free);
    checkValue(owner, `inputs.${key}`, kind, among(KINDS));
  }
  for (const [key, type] of Object.entries(params)) {
    checkValue(owner, 'the name of a param', key, free);
    checkValue(owner, `params.${key}`, type, among(Object.keys(PARAM_RULES)));
  }
  for (const key of spec.saved ?? []) {
    checkValue(owner, 'what is saved', key, among([...names, 'out']));
  }
  return { kernel: { name, params, wgsl, plain: plain as CustomKernel['plain'] }, names };
}

function inputsOf<Name extends string, Param extends string>(
  { name, inputs: kinds }: CustomOpSpec<Name, Param>,
  names: readonly Name[],
  given: Tensor | Readonly<Record<Name, Tensor>>,
): Readonly<Record<Name, Tensor>> {
  const inputs =
    isTensor(given) && names.length === 1
      ? record(names, () => given)
      : (given as Readonly<Record<Name, Tensor>>);
  const rule = { expected: 'a tensor', holds: isTensor };
  checkOptions(
    name,
    inputs,
    record(names, () => rule),
  );
  const operands = names.map((key) => inputs[key]);
  requireSameDevice(name, ...operands);
  for (const key of names) {
    const kind = kinds[key];
    const tensor = inputs[key];
    if (kind === 'float') {
      requireFloat(name, tensor);
    } else if (kind === 'integer') {
      requireInteger(name, tensor);
    } else if (tensor.dtype !== kind) {
      throw new DTypeError(
        `${name}: expected ${key} to be ${kind}, got ${tensor.dtype} ${shapeText(tensor.shape)}. Cast it first.`,
      );
    }
  }
  return inputs;
}

function paramsOf<Name extends string, Param extends string>(
  { name, params: types }: CustomOpSpec<Name, Param>,
  values: object,
): Readonly<Record<string, number>> {
  const entries = Object.entries<'f32' | 'u32'>(types ?? {});
  const rules = Object.fromEntries(entries.map(([key, type]) => [key, PARAM_RULES[type]]));
  checkOptions(name, values, rules);
  const given = values as Readonly<Record<string, number>>;
  return Object.fromEntries(
    entries.map(([key, type]) => [key, type === 'f32' ? Math.fround(given[key]!) : given[key]!]),
  );
}

function gradientsOf<Name extends string>(
  name: string,
  names: readonly Name[],
  results: Gradients<Name>,
): readonly (Tensor | undefined)[] {
  const rule = optional({ expected: 'a tensor', holds: isTensor });
  checkOptions(
    `gradient of ${name}`,
    results,
    record(names, () => rule),
  );
  return names.map((key) => results[key]);
}

/** Throws for an input without elements, since the kernel would read elements that do not exist. */
function requireElements(name: string, operands: readonly Tensor[]): void {
  for (const { size, shape } of operands) {
    if (size === 0) {
      throw new ShapeError(
        `${name}: expected inputs with elements for a result with elements, got ${shapeText(shape)}.`,
      );
    }
  }
}

function record<Key extends string, Value>(
  keys: readonly Key[],
  of: (key: Key) => Value,
): Readonly<Record<Key, Value>> {
  return Object.fromEntries(keys.map((key) => [key, of(key)])) as Record<Key, Value>;
}

function between(least: number, most: number): OptionRule {
  return {
    expected: `a number from ${least} to ${most}`,
    holds: (value) => (value as number) >= least && (value as number) <= most,
  };
}

function among(values: readonly string[]): OptionRule {
  return {
    expected: `one of ${values.map(shown).join(', ')}`,
    holds: (value) => values.includes(value as string),
  };
}
