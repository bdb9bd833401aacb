// What a kernel's text says of itself: its size, workgroup, bindings and workgroup memory.

const BINDING = /^@group\(0\) @binding\((\d+)\) var<([a-z_, ]+)> (\w+): (.+);$/gm;
const SCALARS = { f32: 4, i32: 4, u32: 4, f16: 2, 'atomic<u32>': 4, 'atomic<i32>': 4 };

/**
 * @param {string} wgsl text as defineKernel makes it
 */
export function factsOf(wgsl) {
  const [, params = ''] = /^struct Params \{\n([\s\S]*?)^\}/m.exec(wgsl) ?? [];
  const [, sizes] = /@workgroup_size\(([^)]*)\)/.exec(wgsl);
  const workgroup = sizes.split(',').map(Number);
  const memory = [...wgsl.matchAll(/^var<workgroup> (\w+): (.+);$/gm)].map(([, name, type]) => ({
    ...{ name, type },
    bytes: layoutOf(type, wgsl).bytes,
  }));
  return {
    bytes: Buffer.byteLength(wgsl),
    lines: wgsl.trimEnd().split('\n').length,
    workgroup,
    invocations: workgroup.reduce((product, extent) => product * extent, 1),
    memory,
    memoryBytes: memory.reduce((sum, { bytes }) => sum + bytes, 0),
    params: params.trim().split(/,\s*/).filter(Boolean),
    bindings: [...wgsl.matchAll(BINDING)].map(([, index, access, name, type]) => ({
      ...{ index: Number(index), name, type },
      access: access.replace('storage, ', ''),
    })),
  };
}

/**
 * The bytes of a WGSL type and what its address divides by, as the specification lays it out. The
 * text declares the structures and constants that it names.
 */
function layoutOf(type, wgsl) {
  const scalar = SCALARS[type];
  if (scalar !== undefined) {
    return { bytes: scalar, alignment: scalar };
  }
  const vector = /^vec([234])<(.+)>$/.exec(type);
  if (vector !== null) {
    const [count, { bytes }] = [Number(vector[1]), layoutOf(vector[2], wgsl)];
    return { bytes: count * bytes, alignment: (count === 2 ? 2 : 4) * bytes };
  }
  const array = /^array<(.+), *(\w+)>$/.exec(type);
  if (array !== null) {
    const { bytes, alignment } = layoutOf(array[1], wgsl);
    return { bytes: countOf(array[2], wgsl) * aligned(bytes, alignment), alignment };
  }
  const [, fields] = new RegExp(`^struct ${type} \\{ (.+) \\}$`, 'm').exec(wgsl) ?? [];
  if (fields === undefined) {
    throw new Error(`expected a type that the text declares, got ${type}`);
  }
  const layouts = fields.split(', ').map((field) => layoutOf(field.split(': ')[1], wgsl));
  const alignment = Math.max(...layouts.map((one) => one.alignment));
  const end = layouts.reduce((at, one) => aligned(at, one.alignment) + one.bytes, 0);
  return { bytes: aligned(end, alignment), alignment };
}

function countOf(word, wgsl) {
  const [, value] = new RegExp(`^const ${word} = (\\d+)u?;$`, 'm').exec(wgsl) ?? [word, word];
  return Number.parseInt(value, 10);
}

function aligned(bytes, alignment) {
  return Math.ceil(bytes / alignment) * alignment;
}
