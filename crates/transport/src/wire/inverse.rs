//! CRC-32 backwards: what the register was before a number of zero bytes.
//!
//! The register is a polynomial over two elements, modulo the CRC's polynomial, the coefficient of
//! x^0 in the highest bit. A zero byte multiplies it by x^8. So what undoes `n` of them is a
//! multiplication by x^(-8n), which is the product of two numbers out of tables.

/// CRC-32 of IEEE 802.3, its bits reversed.
const POLYNOMIAL: u32 = 0xEDB8_8320;
const ONE: u32 = 1 << 31;

/// The register before `count` zero bytes went through it and left it at `register`.
pub(super) fn remove_zeros(register: u32, count: u16) -> u32 {
    let [high, low] = [count >> 8, count & 0xFF].map(usize::from);
    multiply(multiply(register, UNITS[low]), BLOCKS[high])
}

/// x^(-8n).
static UNITS: [u32; 256] = powers(byte_back(ONE));
/// x^(-8 * 256n).
static BLOCKS: [u32; 256] = powers(multiply(UNITS[255], UNITS[1]));

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = multiply(powers[n - 1], base);
        n += 1;
    }
    powers
}

/// Times x^(-8).
const fn byte_back(mut register: u32) -> u32 {
    let mut bits = 0;
    while bits < 8 {
        // A step forward shifts out the lowest bit, and adds the polynomial if it was set, whose
        // highest bit is. So the highest bit says what was shifted out.
        let carry = register >> 31;
        register = (register ^ (POLYNOMIAL & carry.wrapping_neg())) << 1 | carry;
        bits += 1;
    }
    register
}

const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ (POLYNOMIAL & (b & 1).wrapping_neg());
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zero_byte(mut register: u32) -> u32 {
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 == 1 { POLYNOMIAL } else { 0 };
        }
        register
    }

    #[test]
    fn zeros_are_removed_as_they_came() {
        let start = 0x1234_5678;
        let mut register = start;
        for count in 0..=u16::MAX {
            assert_eq!(remove_zeros(register, count), start, "{count}");
            register = zero_byte(register);
        }
    }
}
