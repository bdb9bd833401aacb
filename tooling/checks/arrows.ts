// The arrows between packages. Checks enforce them, and docs/architecture.md draws them.

/** What each package may import from this workspace. A new package states its arrows here. */
export const ARROWS: Readonly<Record<string, readonly string[]>> = {
  dtypes: [],
  collectives: ['dtypes'],
  'tensor-core': ['dtypes'],
  'shard-store': [],
  checkpoint: ['shard-store', 'dtypes'],
  nn: ['tensor-core', 'checkpoint', 'dtypes'],
  fsdp: ['nn', 'tensor-core', 'collectives', 'checkpoint', 'shard-store', 'dtypes'],
  'ddp-buckets': ['nn', 'tensor-core', 'collectives', 'dtypes'],
  offload: ['nn', 'tensor-core', 'checkpoint', 'shard-store', 'dtypes'],
  'memory-tracker': ['nn', 'tensor-core'],
  gguf: ['nn', 'dtypes'],
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
  ],
};

/** Draws the arrows as a Mermaid chart, without those that follow from two others. */
export function drawArrows(): string {
  const lines = Object.entries(ARROWS).flatMap(([name, targets]) => {
    const direct = targets.filter(
      (target) => !targets.some((between) => between !== target && reaches(between, target)),
    );
    return direct.length === 0 ? [`  ${name}`] : [`  ${name} --> ${direct.join(' & ')}`];
  });
  return ['```mermaid', 'flowchart BT', ...lines, '```'].join('\n');
}

function reaches(from: string, to: string): boolean {
  return (ARROWS[from] ?? []).some((target) => target === to || reaches(target, to));
}
