// The C interface from Rust without a binding generator: one forward whose first row sees one key, and one refusal.
use std::ffi::{c_char, c_void, CStr};
use std::ptr::null;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    shape: [i64; 4],
    stride: [i64; 4],
    dtype: i32,
    device_type: i32,
    device_index: i32,
    reserved: i32,
}

#[repr(C)]
struct Error {
    code: i32,
    message: [c_char; 1020],
}

/// Declares only the first fields of attend_params, and reserves room for the others.
#[repr(C)]
struct Params {
    struct_size: usize,
    scale: f64,
    has_scale: i32,
    causal: i32,
    window_left: i64,
    window_right: i64,
    others: [u64; 14],
}

#[repr(C)]
struct ForwardCall {
    struct_size: usize,
    q: *const Tensor,
    k: *const Tensor,
    v: *const Tensor,
    o: *const Tensor,
    lse: *const Tensor,
    params: *const Params,
    stream: *mut c_void,
}

extern "C" {
    fn attend_params_init(params: *mut Params, struct_size: usize);
    fn attend_forward(call: *const ForwardCall, error: *mut Error) -> i32;
}

fn view(data: &[f32], rows: i64, columns: i64) -> Tensor {
    Tensor {
        data: data.as_ptr() as *mut c_void,
        shape: [1, 1, rows, columns],
        stride: [rows * columns, rows * columns, columns, 1],
        dtype: 0,
        device_type: 0,
        device_index: 0,
        reserved: 0,
    }
}

fn main() {
    let (rows, columns) = (5, 16);
    let data: Vec<f32> = (0..rows * columns).map(|n| (n as f32).sin()).collect();
    let out = vec![f32::NAN; data.len()];
    let (input, o) = (view(&data, rows, columns), view(&out, rows, columns));
    let mut error = Error { code: -1, message: [0; 1020] };
    unsafe {
        let mut params: Params = std::mem::zeroed();
        attend_params_init(&mut params, std::mem::size_of::<Params>());
        params.causal = 1;
        let mut call = ForwardCall {
            struct_size: std::mem::size_of::<ForwardCall>(),
            q: &input,
            k: &input,
            v: &input,
            o: &o,
            lse: null(),
            params: &params,
            stream: std::ptr::null_mut(),
        };
        assert_eq!(attend_forward(&call, &mut error), 0);
        assert_eq!(error.code, 0);
        let found = std::slice::from_raw_parts(o.data as *const f32, data.len());
        assert_eq!(found[..columns as usize], data[..columns as usize]);
        assert!(found.iter().all(|x| x.is_finite()));
        call.v = null();
        assert_eq!(attend_forward(&call, &mut error), 1);
        assert_eq!(CStr::from_ptr(error.message.as_ptr()).to_str(), Ok("v: null, allowed a tensor"));
    }
    println!("rust: ok");
}
