// The names of a store's files. A directory may hold other files, too: what is not named exactly
// like these belongs to somebody else, and is neither read nor written nor removed.

export const MANIFEST = 'shardweave-manifest';
export const NEXT_MANIFEST = 'shardweave-manifest.next';
export const OWNER = 'shardweave-owner';

/** A file for values of the key with number `id`. */
export interface Place {
  readonly id: number;
  readonly slot: number;
}

/** The slots of a key; see Note [generations]. */
const SLOTS = [0, 1, 2, 3] as const;

/** The slot for a new value of a key whose values in `taken` count. */
export function freeSlot(taken: readonly ({ readonly slot: number } | undefined)[]): number {
  return SLOTS.find((slot) => !taken.some((value) => value?.slot === slot))!;
}

/** The second name of a value that is pinned, such as `shardweave-000001.0.pin-3`. */
export function pinFile(place: Place, number: number): string {
  return `${slotFile(place)}.pin-${number}`;
}

export function isPin(name: string): boolean {
  const [, slot] = /^(.*)\.pin-\d+$/.exec(name) ?? [];
  return slot !== undefined && placeOf(slot) !== undefined;
}

const SLOT_FILE = /^shardweave-(\d{6,})\.([0-3])$/;

/** The name of a slot's file, such as `shardweave-000001.0`. */
export function slotFile({ id, slot }: Place): string {
  return `shardweave-${String(id).padStart(6, '0')}.${slot}`;
}

/** The place that a file is named after; undefined for any other file. */
export function placeOf(name: string): Place | undefined {
  const match = SLOT_FILE.exec(name);
  if (match === null) {
    return undefined;
  }
  const place = { id: Number(match[1]), slot: Number(match[2]) };
  return slotFile(place) === name ? place : undefined;
}
