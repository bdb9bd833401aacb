// A kernel: WGSL text with its bindings and parameters, made from a spec by a pure function. Sizes
// and offsets are parameters, never text, so equal specs give equal text and the text can key the
// pipeline cache. Element offsets of views are parameters of their own, filled at dispatch.

import type { DType } from '@shardweave/dtypes';
import { COMMON_FUNCTIONS, SPECIAL_VALUES } from './wgsl.js';

/** How a kernel sees a storage buffer. `raw` is u32 words whatever they hold. */
export type ElementType = DType | 'raw';

export interface Binding {
  readonly name: string;
  readonly type: ElementType;
  readonly access: 'read' | 'read_write';
  /**
   * Whether the buffer is seen as vectors of four elements. `load4_x` and `store4_x` take indices
   * that are multiples of four. `peek4_x` takes the number of a vector and returns its words as
   * they are stored, and `widen_x` unpacks them or gives zeros in their place.
   */
  readonly isWide?: boolean;
  /**
   * Whether f16 is read as WGSL's own f16, which the kernel must enable, or unpacked from words.
   */
  readonly isShaderF16?: boolean;
}

export type ParamType = 'u32' | 'i32' | 'f32';

export interface KernelSpec {
  readonly label: string;
  readonly bindings: readonly Binding[];
  /** The names that are read through another binding, since the call is in place: { x: 'out' }. */
  readonly aliases?: Readonly<Record<string, string>>;
  readonly params: Readonly<Record<string, ParamType>>;
  readonly workgroupSize: readonly [number, number, number];
  readonly enables?: readonly string[];
  /**
   * Whether the workgroups may run in several dispatches. `main` then adds `first_group()` to its
   * workgroup_id, and does not use the number of workgroups.
   */
  readonly isCuttable?: boolean;
  /** The text behind the generated declarations: helpers and `main`. */
  readonly body: string;
}

export interface Kernel {
  readonly label: string;
  readonly wgsl: string;
  readonly bindings: readonly Binding[];
  readonly params: readonly { readonly name: string; readonly type: ParamType }[];
  readonly workgroupSize: readonly [number, number, number];
  readonly isCuttable: boolean;
  /** A text that is equal for kernels that can share a bind group layout. */
  readonly layoutKey: string;
}

/** The numbers of workgroups in x, y and z. */
export type Grid = readonly [number, number, number];

/** The bytes of a parameter block: 64 words, which is the default alignment of dynamic offsets. */
export const PARAM_BYTES = 256;

/** The last parameters of kernels that may be cut, but for the views': filled at dispatch. */
const FIRST_GROUP = ['group_x', 'group_y', 'group_z'] as const;

/** A body with these calls gets SPECIAL_VALUES, and the word that they read behind `params`. */
const SPECIAL_CALLS = /\b(?:inf|nan)\(\)/;

/** WebGPU's limit of workgroups in one dimension. */
const MAX_GRID = 65535;

/**
 * Declares bindings, parameters and accessors (`load_x`, `peek_x`, `store_x`, `store2_x`) around a
 * body.
 */
export function defineKernel(spec: KernelSpec): Kernel {
  const params = [
    ...Object.entries(spec.params).map(([name, type]) => ({ name, type })),
    ...(spec.isCuttable === true ? FIRST_GROUP : []).map((name) => ({
      name,
      type: 'u32' as const,
    })),
    ...spec.bindings.map((b) => ({ name: `${b.name}_at`, type: 'u32' as const })),
  ];
  const isSpecial = SPECIAL_CALLS.test(spec.body);
  if ((params.length + Number(isSpecial)) * 4 > PARAM_BYTES) {
    throw new RangeError(`${spec.label}: too many parameters`);
  }
  const lines = [
    ...(spec.enables ?? []).map((name) => `enable ${name};`),
    'struct Params {',
    ...params.map((param) => `  ${param.name}: ${param.type},`),
    ...(isSpecial ? ['  inf_bits: u32,'] : []),
    '}',
    '@group(0) @binding(0) var<uniform> P: Params;',
    ...spec.bindings.map(
      (b, i) =>
        `@group(0) @binding(${i + 1}) var<storage, ${b.access}> ${b.name}: array<${b.isWide ? wideType(b) : storageType(b)}>;`,
    ),
    COMMON_FUNCTIONS,
    ...(isSpecial ? [SPECIAL_VALUES] : []),
    ...(spec.isCuttable === true
      ? [
          `fn first_group() -> vec3<u32> { return vec3<u32>(${FIRST_GROUP.map((param) => `P.${param}`).join(', ')}); }`,
        ]
      : []),
    ...spec.bindings.flatMap((b) => accessors(b.name, b)),
  ];
  for (const [name, target] of Object.entries(spec.aliases ?? {})) {
    const binding = spec.bindings.find((b) => b.name === target);
    if (binding === undefined) {
      throw new RangeError(`${spec.label}: no binding ${target}`);
    }
    lines.push(loader(name, binding));
  }
  return {
    label: spec.label,
    wgsl: `${lines.join('\n')}\n${spec.body.trim()}\n`,
    bindings: spec.bindings,
    params,
    workgroupSize: spec.workgroupSize,
    isCuttable: spec.isCuttable === true,
    layoutKey: spec.bindings.map((b) => (b.access === 'read' ? 'r' : 'w')).join(''),
  };
}

/** Spreads a number of workgroups over x and y; shaders undo it with `group_index`. */
export function linearGrid(workgroups: number): Grid {
  if (workgroups <= MAX_GRID) {
    return [Math.max(workgroups, 1), 1, 1];
  }
  const y = Math.ceil(workgroups / MAX_GRID);
  return [Math.ceil(workgroups / y), y, 1];
}

/** Elements that one invocation stores at once: 16-bit outputs are written as whole words. */
export function elementsPerWord(type: ElementType): 1 | 2 {
  return type === 'f16' || type === 'bf16' ? 2 : 1;
}

type Stored = Pick<Binding, 'type' | 'isShaderF16'>;

function storageType({ type, isShaderF16 }: Stored): string {
  if (isShaderF16) {
    return 'f16';
  }
  return type === 'f32' || type === 'i32' ? type : 'u32';
}

function wideType(stored: Stored): string {
  return isPacked(stored) ? 'vec2<u32>' : `vec4<${storageType(stored)}>`;
}

/** Whether elements are the halves of words. */
function isPacked({ type, isShaderF16 }: Stored): boolean {
  return elementsPerWord(type) === 2 && !isShaderF16;
}

/** The WGSL type of a loaded element: 16-bit floats are f32 in a kernel. */
function loadedType(stored: Stored): string {
  return elementsPerWord(stored.type) === 2 ? 'f32' : storageType(stored);
}

function wideAccessors(binding: Binding): string[] {
  const { name, type, access } = binding;
  const stored = wideType(binding);
  const loaded = `vec4<${loadedType(binding)}>`;
  const lines = [
    `fn peek4_${name}(vector: u32) -> ${stored} { return ${name}[vector]; }`,
    `fn widen_${name}(stored: ${stored}, is_kept: bool) -> ${loaded} {
  let w = select(${stored}(), stored, is_kept);
  return ${isPacked(binding) ? unpacked(type) : `${loaded}(w)`};
}`,
    `fn load4_${name}(i: u32) -> ${loaded} { return widen_${name}(peek4_${name}((P.${name}_at + i) >> 2u), true); }`,
  ];
  if (access === 'read_write') {
    const packed = `vec2<u32>(${type}_pack(v.x, v.y), ${type}_pack(v.z, v.w))`;
    lines.push(
      `fn store4_${name}(i: u32, v: ${loaded}) { ${name}[(P.${name}_at + i) >> 2u] = ${isPacked(binding) ? packed : 'v'}; }`,
    );
  }
  return lines;
}

/** The four elements of two words `w`. */
function unpacked(type: ElementType): string {
  return type === 'f16'
    ? 'vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y))'
    : 'bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u))';
}

function accessors(name: string, binding: Binding): string[] {
  if (binding.isWide) {
    return wideAccessors(binding);
  }
  const lines = [loader(name, binding)];
  if (binding.access === 'read') {
    return lines;
  }
  const { type } = binding;
  if (elementsPerWord(type) === 2) {
    lines.push(
      `fn store2_${name}(i: u32, low: f32, high: f32) { ${name}[(P.${name}_at + i) >> 1u] = ${type}_pack(low, high); }`,
      // The last of an odd number of elements shares its word with a neighbor, which stays.
      `fn store1_${name}(i: u32, low: f32) { let w = (P.${name}_at + i) >> 1u; ${name}[w] = (${name}[w] & 0xffff0000u) | ${type}_bits(low); }`,
    );
  } else {
    lines.push(
      `fn store_${name}(i: u32, v: ${storageType(binding)}) { ${name}[P.${name}_at + i] = v; }`,
    );
  }
  return lines;
}

function loader(name: string, binding: Binding): string {
  const { name: array, type } = binding;
  const result = loadedType(binding);
  const value = isPacked(binding)
    ? `${type}_unpack(${array}[e >> 1u], e & 1u)`
    : binding.isShaderF16
      ? `f32(${array}[e])`
      : `${array}[e]`;
  // `peek` takes an index that has the view's offset in it, which inner loops need not add.
  return `fn peek_${name}(e: u32) -> ${result} { return ${value}; }
fn load_${name}(i: u32) -> ${result} { return peek_${name}(P.${array}_at + i); }`;
}
