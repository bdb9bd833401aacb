// The arrows between packages. Checks enforce them, and docs/architecture.md draws them.

/** What each package may import from this workspace. A new package states its arrows here. */
export const ARROWS: Readonly<Record<string, readonly string[]>> = {
  dtypes: [],
  collectives: ['dtypes'],
  'tensor-core': ['dtypes'],
  'shard-store': ['dtypes'],
  checkpoint: ['shard-store', 'dtypes'],
  nn: ['tensor-core', 'checkpoint', 'dtypes'],
  fsdp: ['nn', 'tensor-core', 'collectives', 'shard-store', 'dtypes'],
  'ddp-buckets': ['nn', 'tensor-core', 'collectives', 'dtypes'],
  offload: ['nn', 'tensor-core', 'shard-store', 'dtypes'],
  'memory-tracker': ['nn', 'tensor-core', 'dtypes'],
  gguf: ['nn', 'dtypes'],
  onnx: ['nn', 'dtypes'],
  trainer: [
    'dtypes',
    'collectives',
    'tensor-core',
    'nn',
    'shard-store',
    'checkpoint',
    'fsdp',
    'ddp-buckets',
    'offload',
    'gguf',
    'onnx',
  ],
};

/**
 * Rooms of a package that know one another by types alone, and why they do. `any`: all of them
 * may.
 */
export const CIRCLES_OF_TYPES: readonly {
  readonly package: string;
  readonly rooms: readonly string[] | 'any';
  readonly why: string;
}[] = [
  {
    package: 'trainer',
    rooms: 'any',
    why: 'A run is described by what its rooms pass on: its configuration, the events of ranks, the records, the saves.',
  },
  {
    package: 'tensor-core',
    rooms: ['autograd', 'device.ts', 'memory', 'ops', 'tensor.ts'],
    why: 'A tensor knows its device, its storage and the node that made it; a device makes tensors, and runs the graph of nodes.',
  },
];

/** What each part may import, by name. */
export type Arrows = Readonly<Record<string, readonly string[]>>;

/** Draws arrows as a Mermaid chart, without those that follow from two others. */
export function drawArrows(arrows: Arrows): string {
  const lines = Object.entries(arrows).flatMap(([name, targets]) => {
    const direct = targets.filter(
      (target) =>
        !targets.some((between) => between !== target && reaches(arrows, between, target)),
    );
    return direct.length === 0 ? [`  ${name}`] : [`  ${name} --> ${direct.join(' & ')}`];
  });
  return ['```mermaid', 'flowchart BT', ...lines, '```'].join('\n');
}

function reaches(arrows: Arrows, from: string, to: string): boolean {
  return (arrows[from] ?? []).some((target) => target === to || reaches(arrows, target, to));
}
