// The tiles of attention's kernels. A workgroup has some rows of one side (queries, or keys in the
// kernel of their gradients) and walks blocks of the other side, its columns. An invocation
// computes eight rows by four columns of scores, then eight rows by four or eight dimensions of the
// sums; attention-slices.ts has both products.
//
// `npm run kernels -- attention f32 wide 64x8x2` prints, among other lines:
//
//   @group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
//   @group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
//   @group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
//   ...
//   @compute @workgroup_size(64)

import type { DType } from '@shardweave/dtypes';
import { floorLog2, pow64 } from '@shardweave/dtypes/float64';
import type { Binding } from '../../kernel/kernel.js';
import { ATTENTION_PARAMS, type PairSpec, STRIDE_PARAMS } from './attention-pairs.js';

/** What the text of attention's kernels depends on. */
export interface AttentionSpec extends PairSpec {
  readonly dtype: DType;
  /**
   * Whether every row of every operand starts at a multiple of four elements, and a head is whole
   * slices of eight.
   */
  readonly isWide: boolean;
  /** Whether dk and dv lie in one buffer, which can be bound for writing only once. */
  readonly isShared: boolean;
  readonly tile: AttentionTile;
}

export interface AttentionTile {
  /** The invocations along rows, each of which has eight. */
  readonly down: number;
  /** The invocations along columns, each of which has four; the same share out the dimensions. */
  readonly across: number;
  /** The groups of four dimensions that an invocation has, `across` such groups apart. */
  readonly quads: number;
}

/** The values that `across` may have, in ascending order. */
const ACROSS = [8, 12, 16, 24, 32, 48, 64];
const WARP = 32;
/**
 * The most invocations of a tile, by its most quads. With one quad an invocation loads more for
 * each product, so more invocations share the loads.
 */
const MOST_INVOCATIONS = { 1: 256, 2: 128 };
/** No tile has more rows than 64, so that all larger numbers of rows get the same one. */
const MANY_ROWS = 65;
/** The tiles that were chosen, because each call of each step asks for one. */
const CHOSEN = new Map<number, AttentionTile>();

/**
 * Returns the tile for heads of `dim` dimensions. The forward pass and the queries' gradients have
 * one sum for each row, of which an invocation may keep two quads; keys and values have two sums,
 * of which it keeps one quad each. Few queries, such as the single one of a generated token, get a
 * tile with more columns.
 */
export function attentionTile(
  dim: number,
  { rows, mostQuads }: { readonly rows: number; readonly mostQuads: 1 | 2 },
): AttentionTile {
  const known = Math.min(rows, MANY_ROWS);
  const key = (dim * (MANY_ROWS + 1) + known) * 2 + mostQuads - 1;
  let tile = CHOSEN.get(key);
  if (tile === undefined) {
    tile = chooseTile(dim, { rows: known, mostQuads });
    CHOSEN.set(key, tile);
  }
  return tile;
}

function chooseTile(
  dim: number,
  { rows, mostQuads }: { readonly rows: number; readonly mostQuads: 1 | 2 },
): AttentionTile {
  const needed = Math.ceil(dim / 4);
  const fitting = ACROSS.flatMap((across) =>
    [mostQuads, 1].map((quads) => ({ across, quads })),
  ).filter(({ across, quads }) => across * quads >= needed);
  const { across, quads } = fitting.reduce((best, tile) =>
    tile.across * tile.quads < best.across * best.quads ? tile : best,
  );
  const most = Math.max(4, Math.min(8, floorToPowerOf2(MOST_INVOCATIONS[mostQuads] / across)));
  const wanted = [1, 2, 4, 8].find((down) => down === most || rows <= 8 * down)!;
  // Two sums leave no registers for the loads that fewer invocations would share.
  if (wanted === most || mostQuads === 1) {
    return { down: most, across, quads };
  }
  const wide = ACROSS.find((width) => width >= Math.min(needed, 64))!;
  const down = [1, 2, 4, 8].find((height) => height >= wanted && height * wide >= WARP)!;
  return { down, across: wide, quads: Math.ceil(needed / wide) };
}

function floorToPowerOf2(value: number): number {
  return pow64(2, floorLog2(value));
}

export const PARAMS = {
  ...ATTENTION_PARAMS,
  ...STRIDE_PARAMS,
  dk_first: 'u32',
  dv_first: 'u32',
} as const;

export function attentionInputs(
  spec: Pick<AttentionSpec, 'dtype' | 'mask' | 'hasSegments' | 'sharesIds'> & {
    readonly isWide?: boolean;
  },
  names: readonly string[],
): Binding[] {
  const { dtype, mask, hasSegments, sharesIds, isWide = false } = spec;
  const ids = sharesIds ? ['ids'] : ['query_ids', 'key_ids'];
  const read = (name: string, type: Binding['type']): Binding => ({ name, type, access: 'read' });
  return [
    ...names.map((name) =>
      name === 'stats' ? read(name, 'f32') : { ...read(name, dtype), isWide },
    ),
    ...(mask === undefined ? [] : [read('mask', mask)]),
    ...(hasSegments ? ids.map((name) => read(name, 'raw')) : []),
  ];
}

/** The names by which kernels read ids, where they have one binding. */
export function idAliases({
  sharesIds,
}: Pick<AttentionSpec, 'sharesIds'>): Readonly<Record<string, string>> {
  return sharesIds ? { query_ids: 'ids', key_ids: 'ids' } : {};
}

export function keyOf(kind: string, spec: AttentionSpec): string {
  const { tile, dtype, isWide, mask, hasSegments, sharesIds, hasDropout, isShared } = spec;
  return [
    kind,
    dtype,
    isWide ? 'wide' : '',
    mask === undefined ? '' : `mask ${mask}`,
    hasSegments ? `${sharesIds ? '' : 'two '}segments` : '',
    hasDropout ? 'dropout' : '',
    kind === 'attention keys' && isShared ? 'shared' : '',
    `${8 * tile.down}x${tile.across}x${tile.quads}`,
  ]
    .filter((part) => part !== '')
    .join(' ');
}

/**
 * Returns statements for each of `count` numbers, written out, since a GPU keeps an array in
 * registers only where all of its indices are constants.
 */
export function each(count: number, body: (i: string, isLast: boolean) => string): string {
  return Array.from({ length: count }, (_, i) => `{ ${body(`${i}u`, i === count - 1)} }`).join(
    '\n',
  );
}
