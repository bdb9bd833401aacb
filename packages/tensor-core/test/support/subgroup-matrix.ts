// Subgroup matrices are replaced by plain WGSL here, so that kernels for matrix units run on
// devices that have none. Functions do what the built-ins specify, one lane of an assumed subgroup
// of 32 after another. Only the order in which a unit adds is this file's own choice.

/** The one configuration that is replaced: f16 to f32, 16 x 16 x 16. */
export const CONFIG = {
  ...{ componentType: 'f16', resultComponentType: 'f32' },
  ...{ M: 16, N: 16, K: 16 },
};
const EXTENT = 16;
export const LANES = 32;

/**
 * A left or right matrix is the place where it lies (its first element and the steps to the next
 * row and column), since blocks don't change before it is used. Element i of the sums is held by
 * lane i mod 32.
 */
const TYPES = `
alias Place = vec3<u32>;
alias Sums = array<vec4<f32>, 2>;
var<private> own_lane: u32;
fn in_rows(offset: u32, stride: u32) -> Place { return Place(4u * offset, 4u * stride, 1u); }
fn in_columns(offset: u32, stride: u32) -> Place { return Place(4u * offset, 1u, 4u * stride); }
fn element_a(p: Place, row: u32, k: u32) -> f32 {
  let e = p.x + row * p.y + k * p.z;
  return f32(a_block[e / 4u][e % 4u]);
}
fn element_b(p: Place, k: u32, col: u32) -> f32 {
  let e = p.x + k * p.y + col * p.z;
  return f32(b_block[e / 4u][e % 4u]);
}
// No compiler knows this loop's end, and unrolls it in each of its many copies.
fn multiply_add(a: Place, b: Place, c: Sums) -> Sums {
  let row = own_lane / ${EXTENT}u;
  var first = c[0];
  var second = c[1];
  for (var k = 0u; k < min(P.k + ${EXTENT}u, ${EXTENT}u); k++) {
    let y = vec4<f32>(element_b(b, k, own_lane % ${EXTENT}u));
    first = fma(vec4<f32>(${[0, 2, 4, 6].map((r) => `element_a(a, row + ${r}u, k)`).join(', ')}), y, first);
    second = fma(vec4<f32>(${[8, 10, 12, 14].map((r) => `element_a(a, row + ${r}u, k)`).join(', ')}), y, second);
  }
  return Sums(first, second);
}
fn store_matrix(offset: u32, c: Sums, stride: u32) {
  let at = offset + own_lane / ${EXTENT}u * stride + own_lane % ${EXTENT}u / 4u;
  ${[0, 1].flatMap((v) => [0, 1, 2, 3].map((i) => `c_block[at + ${(4 * v + i) * 2}u * stride][own_lane % 4u] = c[${v}][${i}];`)).join('\n  ')}
}
`;

/**
 * Returns the text with all built-ins of subgroup matrices replaced.
 *
 * @throws {Error} if something of subgroups is left
 */
export function withoutSubgroupMatrices(wgsl: string): string {
  const text = wgsl
    .replace(/^enable (subgroups|subgroup_size_control|chromium_\w+);$/gm, '')
    .replace(
      /@builtin\(subgroup_id\) subgroup: u32,\s*@builtin\(subgroup_invocation_id\) own: u32,/,
      '',
    )
    .replace(`@subgroup_size(${LANES})`, '')
    .replace(
      'let group_id =',
      `let subgroup = lane / ${LANES}u;
  let own = lane % ${LANES}u;
  own_lane = own;
  let group_id =`,
    )
    .replace(
      /subgroupMatrixLoad<(subgroup_matrix_left<f16, 16, 16>, (?:row|col)_major>\(&a|subgroup_matrix_right<f16, 16, 16>, (?:row|col)_major>\(&b)_block, /g,
      (_, form: string) => (form.includes('row_major') ? 'in_rows(' : 'in_columns('),
    )
    .replaceAll('subgroup_matrix_result<f32, 16, 16>', 'Sums')
    .replaceAll('subgroupMatrixMultiplyAccumulate(', 'multiply_add(')
    .replaceAll('subgroupMatrixStore<row_major>(&c_block, ', 'store_matrix(');
  if (/subgroup(_?[mM]atrix|_size|_id|_invocation)/.test(text)) {
    throw new Error(`subgroups are left in:\n${text}`);
  }
  return text + TYPES;
}
