// This is the multiply-add of products. Builds with relaxed SIMD round once where the processor
// can, the others round the product first. Only sums of matrix products and the arithmetic of
// attention use it, so that everything else has the same bits in every build.

/** Returns a * b + c, lane by lane. */
@inline
export function madd(a: v128, b: v128, c: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) {
    return v128.relaxed_madd<f32>(a, b, c);
  }
  return f32x4.add(c, f32x4.mul(a, b));
}

/** Returns c - a * b, lane by lane. */
@inline
export function nmadd(a: v128, b: v128, c: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) {
    return v128.relaxed_nmadd<f32>(a, b, c);
  }
  return f32x4.sub(c, f32x4.mul(a, b));
}
