export async function doctor() {
  console.log('doctor: being written');
}
