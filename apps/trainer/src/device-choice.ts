// What --device says of one rank: a kind of device, or an adapter of this machine.

/** The kinds of devices that a rank may have. */
export type DeviceKind = 'cpu' | 'webgpu';

/** As typed: `webgpu:4090` names an adapter by a part of its name, `webgpu:1` by its index. */
export type DeviceChoice = 'auto' | DeviceKind | `webgpu:${string}`;

const NAMED = 'webgpu:';

/** The kind of a choice; `auto` stands for the cpu where nobody has looked for a GPU. */
export function kindOf(choice: DeviceChoice): DeviceKind {
  return choice === 'webgpu' || choice.startsWith(NAMED) ? 'webgpu' : 'cpu';
}

/** The name or index of an adapter, as it was given; undefined where none was. */
export function askedAdapter(choice: DeviceChoice): string | undefined {
  return choice.startsWith(NAMED) ? choice.slice(NAMED.length) : undefined;
}
