// Epilogues: what a product does with its sums before it stores them, so that no further kernel has
// to read and write them. An epilogue calls the functions of the kernel that it replaces, and gives
// the same bits. Only hardware gains by it.

import type { DType } from '@shardweave/dtypes';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { Epilogue } from '../../../../kernel-calls/matmul.js';
import type { View } from '../../../../view.js';
import type { Binding, ParamType } from '../../kernel/kernel.js';
import { ACTIVATIONS, DERIVATIVES, FUNCTIONS, SLOPES } from '../elementwise/elementwise.js';

/** The epilogue's part of a product's text. */
export interface EpilogueText {
  /** A name that determines the text, together with the dtype. */
  readonly name: string;
  readonly helpers: string;
  readonly bindings: readonly Binding[];
  readonly params: Readonly<Record<string, ParamType>>;
  /** Statements on the vector `v`: the columns `col` to `col + 3` of `row`, at `at` in out. */
  readonly quad: string;
  /** The same statements for a scalar `v`, one column. */
  readonly one: string;
}

/** The views that an epilogue binds, in the order of its bindings. */
export function epilogueViews(epilogue: Epilogue | undefined): View[] {
  switch (epilogue?.kind) {
    case undefined:
      return [];
    case 'add':
      return [epilogue.addend];
    case 'activate':
      return [epilogue.activated];
    case 'slope':
      return [epilogue.at];
    case 'crossEntropyBackward':
      return [epilogue.targets, epilogue.lse, epilogue.dLoss];
  }
}

export function epilogueParams(call: KernelCalls['matmul']): Readonly<Record<string, number>> {
  const { epilogue, outRow } = call;
  if (epilogue?.kind !== 'crossEntropyBackward') {
    return {};
  }
  const { first = 0, classes = outRow } = epilogue;
  return { first_class: first, classes };
}

/** Returns a name that is equal for epilogues whose texts differ in the dtype at most. */
export function epilogueName(epilogue: Epilogue | undefined): string | undefined {
  switch (epilogue?.kind) {
    case undefined:
    case 'add':
    case 'crossEntropyBackward':
      return epilogue?.kind;
    case 'activate':
      return epilogue.activation;
    case 'slope':
      return `slope of ${epilogue.activation}`;
  }
}

/**
 * Returns the text of an epilogue, if there is one.
 * @param options.dtype the dtype of out, and of the views that have its shape
 * @param options.isWide whether these are loaded and stored as vectors, as 16-bit ones must be
 */
export function epilogueText(
  epilogue: Epilogue | undefined,
  { dtype, isWide }: { readonly dtype: DType; readonly isWide: boolean },
): EpilogueText | undefined {
  const name = epilogueName(epilogue);
  if (epilogue === undefined || name === undefined) {
    return undefined;
  }
  const like = (name: string, access: Binding['access']): Binding => {
    return { name, type: dtype, access, isWide };
  };
  // These epilogues work on the value that the product would have stored, so 16-bit sums are
  // rounded. Logits never are: their slopes would not fit the log-sum-exp.
  const is16 = dtype === 'f16' || dtype === 'bf16';
  const rounded = is16 ? `v = ${each((c) => `${dtype}_unpack(${dtype}_bits(v.${c}), 0u)`)}; ` : '';
  switch (epilogue.kind) {
    case 'add':
      return {
        name,
        helpers: '',
        bindings: [like('addend', 'read')],
        params: {},
        quad: `${rounded}v = load4_addend(at) + v;`,
        one: 'v = load_addend(at) + v;',
      };
    case 'activate':
      return {
        name,
        helpers: `${ACTIVATIONS}fn activate(x: f32) -> f32 { return ${FUNCTIONS[epilogue.activation]}; }`,
        bindings: [like('activated', 'read_write')],
        params: {},
        quad: `${rounded}store4_activated(at, ${each((c) => `activate(v.${c})`)});`,
        one: 'store_activated(at, activate(v));',
      };
    case 'slope':
      return {
        name,
        helpers: `${ACTIVATIONS}${SLOPES}fn slope(x: f32) -> f32 { return ${DERIVATIVES[epilogue.activation]}; }`,
        bindings: [like('x', 'read')],
        params: {},
        quad: `${rounded}let x = load4_x(at); v *= ${each((c) => `slope(x.${c})`)};`,
        one: 'v *= slope(load_x(at));',
      };
    case 'crossEntropyBackward':
      return {
        name,
        helpers: `fn logit_slope(row: u32, column: u32, v: f32) -> f32 {
  let goal = load_targets(row);
  let slope = load_d_loss(row) * (exp_of(v - load_lse(row)) - select(0.0, 1.0, column == goal));
  return select(0.0, slope, goal < P.classes);
}`,
        bindings: [
          { name: 'targets', type: 'raw', access: 'read' },
          { name: 'lse', type: 'f32', access: 'read' },
          { name: 'd_loss', type: 'f32', access: 'read' },
        ],
        params: { first_class: 'u32', classes: 'u32' },
        quad: `let first = P.first_class + col; v = ${each((c, i) => `logit_slope(row, first + ${i}u, v.${c})`)};`,
        one: 'v = logit_slope(row, P.first_class + col, v);',
      };
  }
}

/** Returns WGSL of a vector whose components are `f('x', 0)` to `f('w', 3)`. */
function each(f: (component: string, i: number) => string): string {
  return `vec4<f32>(${['x', 'y', 'z', 'w'].map(f).join(', ')})`;
}
