// The arrows between packages, which the checks hold and docs/architecture.md draws.

/** What each package may import of this workspace; a new package states its arrows here. */
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

/** The arrows as a Mermaid chart. An arrow that follows from two others is left out. */
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
