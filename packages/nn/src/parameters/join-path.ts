// The paths of modules and parameters, such as `blocks.0.attn.weight`.

/** Joins two parts of a path with a dot. An empty part adds no dot. */
export function joinPath(prefix: string, name: string): string {
  if (prefix === '') {
    return name;
  }
  return name === '' ? prefix : `${prefix}.${name}`;
}
