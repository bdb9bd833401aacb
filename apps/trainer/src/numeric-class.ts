// What a numeric class tells of a rank's device.

/**
 * The library that computes products of a cpu device, with version and core, from its numeric
 * class; undefined where wasm does, or it is a GPU.
 */
export function libraryOf(numericClass: string): string | undefined {
  return /^cpu .* for (?:fused|plain) products, (.+?)(?: by rule \d+)?, bits \w+$/.exec(
    numericClass,
  )?.[1];
}
